"""Progress of a run: a bar on a terminal, else a log line every ten seconds."""

import logging
import sys
import time
from types import TracebackType
from typing import Final

from tqdm import tqdm

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES: Final = 10.0


class Progress:
    """Display of the step, samples/s, share of time spent waiting for data, loss and remaining time.

    `step` is the step from which the run starts or resumes, `steps` the last one. Nothing is displayed unless `shown`.
    """

    def __init__(self, step: int, steps: int, shown: bool) -> None:
        self.step, self.steps, self.shown = step, steps, shown
        self.first_step, self.start_time, self.last_line_time = step, time.monotonic(), time.monotonic()
        self.values: dict[str, float] = {}
        self.on_terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=steps, initial=step, unit=" steps", disable=not (shown and self.on_terminal), dynamic_ncols=True
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def advance(self, step: int, values: dict[str, float]) -> None:
        """Display `step` and its `values`. Missing values, such as the speed, are shown as last measured."""
        self.values |= values
        self.bar.update(step - self.step)
        self.step = step
        now = time.monotonic()
        text = (
            f"loss {self.values.get('loss/total', float('nan')):.4f}, "
            f"{self.values.get('samples_per_s', 0):.1f} samples/s, "
            f"{self.values.get('data_wait_share', 0):.0%} waiting for data"
        )
        self.bar.set_postfix_str(text, refresh=False)
        is_due = now - self.last_line_time >= SECONDS_BETWEEN_LINES or step == self.steps
        if self.shown and not self.on_terminal and is_due:
            seconds_left = (now - self.start_time) / (step - self.first_step) * (self.steps - step)
            logger.info("step %d of %d, %s, %.0f s left", step, self.steps, text, seconds_left)
            self.last_line_time = now
