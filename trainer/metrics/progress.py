"""How far a run is: a bar on a terminal, elsewhere a line every so often."""

import logging
import sys
import time
from types import TracebackType

from tqdm import tqdm

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Steps, samples/s, share of waiting for data, loss, time left."""

    def __init__(self, step: int, steps: int, shown: bool) -> None:
        self.step, self.steps, self.shown = step, steps, shown
        self.began_at, self.start, self.last = step, time.monotonic(), time.monotonic()
        self.row: dict[str, float] = {}
        self.terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=steps, initial=step, unit=" steps", disable=not (shown and self.terminal), dynamic_ncols=True
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def advance(self, step: int, values: dict[str, float]) -> None:
        """`values` of the step; speeds are those of the newest step that has them."""
        self.row |= values
        self.bar.update(step - self.step)
        self.step = step
        now = time.monotonic()
        text = (
            f"loss {self.row.get('loss/total', float('nan')):.4f}, {self.row.get('samples_per_s', 0):.1f} samples/s, "
            f"{self.row.get('data_wait_share', 0):.0%} waiting for data"
        )
        self.bar.set_postfix_str(text, refresh=False)
        if self.shown and not self.terminal and (now - self.last >= SECONDS_BETWEEN_LINES or step == self.steps):
            left = (now - self.start) / (step - self.began_at) * (self.steps - step)
            logger.info("step %d of %d, %s, %.0f s left", step, self.steps, text, left)
            self.last = now
