"""Show the progress of a job: a bar on a terminal, else a line now and then, also while no shard is finished."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Final

from tqdm import tqdm

from common.progress import FIRST_S, has_bar, now_and_then
from common.text import duration_text
from pipeline import watch
from pipeline.config import PipelineConfig
from pipeline.estimate import LOCAL, ON_RAY, Estimate
from pipeline.run import Done
from schemas.manifest import FailedShard

logger = logging.getLogger("hypergrit")

Result = Done | FailedShard
BAR_S: Final = 1.0
BAR: Final = "{percentage:3.0f}%|{bar}| {desc} [{elapsed}{postfix}]"


class Progress(watch.Follower):
    """The counts of a job, and the thread that shows them."""

    def __init__(self, n_rows: int, config: PipelineConfig) -> None:
        self.n_rows, self.interval_s = n_rows, config.log.interval_s
        self.estimate = Estimate(n_rows, LOCAL if config.ray.runner == "local" else ON_RAY)
        self.kept = self.dropped = self.unfinished = 0
        self.start = time.monotonic()
        self.is_terminal = has_bar()
        self.bar: Any = tqdm(total=1.0, bar_format=BAR, disable=config.quiet or not self.is_terminal)
        self._lock = threading.RLock()
        self._shown = ExitStack()
        if not config.quiet:
            show, first_s, most_s = (
                (self._move_bar, BAR_S, BAR_S) if self.is_terminal else (self._log, FIRST_S, self.interval_s)
            )
            self._shown.callback(show)
            self._shown.enter_context(now_and_then(show, first_s, most_s))

    def begun(self, index: int, step: str, n_rows: int) -> None:
        """Note the beginning of a step."""
        with self._lock:
            self.estimate.begun(time.monotonic(), index, step, n_rows)

    def ended(self, index: int, step: str, seconds: float | None) -> None:
        """Note the end of a step."""
        with self._lock:
            self.estimate.ended(time.monotonic(), index, step, seconds)

    def lost(self, index: int) -> None:
        """Note a step that has failed."""
        with self._lock:
            self.estimate.lost(index)

    def finished(self, result: Result) -> None:
        """Count the rows of a shard."""
        with self._lock:
            if isinstance(result, Done):
                counts = result.manifest["counts"]
                index, n = result.manifest["shard"], counts["read"]
                self.kept += counts["kept"]
                self.dropped += n - counts["kept"]
            else:
                index, n = result["shard"], result["rows"]
                self.unfinished += n
            self.estimate.finished(index, n)

    def values(self) -> dict[str, Any]:
        """Return the present counts, rows a second, the share of the work that is done, and the remaining seconds."""
        with self._lock:
            now = time.monotonic()
            done, left = self.kept + self.dropped + self.unfinished, self.estimate.remaining_s(now)
            return {
                "rows": self.n_rows,
                "finished": done,
                "kept": self.kept,
                "dropped": self.dropped,
                "unfinished": self.unfinished,
                "prepared": self.estimate.rows["prepare"],
                "grounded": self.estimate.rows["infer"],
                "share": round(self.estimate.fraction(), 4),
                "rows_per_s": round(done / max(now - self.start, 1e-9), 2),
                "left_s": None if left is None or done == self.n_rows else round(left, 1),
            }

    def close(self) -> None:
        """End the thread, and show the last state."""
        self._shown.close()
        self.bar.close()

    def _move_bar(self) -> None:
        values = self.values()
        self.bar.n = values["share"]
        self.bar.set_description_str(f"{values['finished']:,} of {self.n_rows:,} rows", refresh=False)
        self.bar.set_postfix_str(", ".join(details(values)))

    def _log(self) -> None:
        values = self.values()
        text = f"{values['finished']:,} of {self.n_rows:,} rows, {values['share']:.0%} of the work"
        logger.info("%s", ", ".join([text, *details(values)]), extra={"progress": values})


def details(values: dict[str, Any]) -> list[str]:
    """Return the parts of a line on the progress after its number of rows."""
    parts = [f"{values[name]:,} {name}" for name in ("prepared", "grounded") if values[name] > values["finished"]]
    parts += [f"{values[name]:,} {name}" for name in ("kept", "dropped", "unfinished") if values[name]]
    if values["finished"]:
        parts.append(f"{values['rows_per_s']:,.1f} rows/s")
    if values["left_s"] is not None:
        parts.append(f"about {duration_text(values['left_s'])} left")
    return parts


def progress(results: Iterable[Result], n_rows: int, config: PipelineConfig) -> Iterator[Result]:
    """Pass on the results of shards with `n_rows` rows in total, and show the progress, unless `config.quiet`."""
    shown = Progress(n_rows, config)
    try:
        with watch.followed_by(shown):
            for result in results:
                watch.finished(result)
                yield result
    finally:
        shown.close()
