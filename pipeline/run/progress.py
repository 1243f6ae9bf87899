"""Show the progress of a job: a line for each stage on a terminal, else one now and then, also while no shard is finished."""

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, Final, ParamSpec

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hypergrit_common.progress import FIRST_S, has_bar, now_and_then
from hypergrit_common.text import counted, duration_text
from pipeline.config import PipelineConfig
from pipeline.run.steps import Result
from pipeline.stages.order import steps_of
from schemas.manifest import NO_MODEL

# Events of the steps of shards: runners report them, and whoever shows the progress or exports metrics follows them.


class Follower:
    """Receives the events of a job, all in the thread of the runner. Subclasses override what they follow."""

    def loading(self, steps: Sequence[str]) -> None:
        """Note the steps whose models are being loaded, so that none of their shards can begin."""

    def begun(self, index: int, step: str, n_rows: int) -> None:
        """Note that a worker has begun a step of a shard; steps after it count as not done."""

    def ended(self, index: int, step: str, seconds: float | None = None) -> None:
        """Note the end of a step, which took `seconds` without the loading of models; None: not measured by the worker."""

    def lost(self, index: int) -> None:
        """Note that the running step of a shard has failed, or its worker has died."""

    def finished(self, result: Result) -> None:
        """Note the end of a shard."""

    def models(self, n: int, n_busy: int) -> None:
        """Note the number of model workers that are ready, and of those that compute; called every few seconds."""


Facts = ParamSpec("Facts")
_FOLLOWERS: Final[list[Follower]] = []


@contextmanager
def followed_by(follower: Follower) -> Iterator[None]:
    """Send the events to `follower` for the `with` block."""
    _FOLLOWERS.append(follower)
    try:
        yield
    finally:
        _FOLLOWERS.remove(follower)


def tell(event: Callable[Concatenate[Follower, Facts], None], *facts: Facts.args, **more: Facts.kwargs) -> None:
    """Report an event, which is a method of `Follower`, to all followers."""
    for follower in tuple(_FOLLOWERS):
        getattr(follower, event.__name__)(*facts, **more)


# Estimate the progress and the remaining time of a job from the steps of its shards.
#
# A step takes the same time for each row. Steps that share workers form a pool, which is as large as the number of
# steps that it has computed at the same time. The remaining work of each pool, divided by its size, is a lower bound of
# the remaining time; the slowest pool decides, and the last shard passes the other steps once more. No shard in work
# ends before its own steps have.

STEPS: Final = ("prepare", "infer", "write")
LOCAL: Final = (STEPS,)
"""Pools of the local runner: one process computes all steps."""
ON_RAY: Final = (("prepare", "write"), ("infer",))
"""Pools on Ray: CPU workers, and model workers."""
WINDOW_S: Final = 120.0
"""Time after which a pool that computes less than before counts as smaller."""


@dataclass
class Pool:
    """Workers that share some steps: the most steps at the same time in the present and in the previous window."""

    steps: Sequence[str]
    start: float = 0.0
    peak: int = 0
    before: int = 0

    def see(self, now: float, n: int) -> None:
        """Note `n` steps at the same time."""
        if now - self.start > WINDOW_S:
            self.start, self.before, self.peak = now, self.peak, 0
        self.peak = max(self.peak, n)

    @property
    def size(self) -> int:
        """The number of steps that the pool computes at the same time."""
        return max(self.peak, self.before, 1)


@dataclass
class TimeLeft:
    """The steps of all shards of a job with `n_rows` rows. Times are seconds of any clock that does not go back."""

    n_rows: int
    groups: Sequence[Sequence[str]] = LOCAL
    rows: Counter[str] = field(default_factory=Counter)  # that have passed each step
    seconds: dict[str, float] = field(default_factory=dict)  # of the steps that were measured
    measured: Counter[str] = field(default_factory=Counter)  # their rows

    def __post_init__(self) -> None:
        self.pools = [Pool(steps) for steps in self.groups]
        self._sizes: dict[int, int] = {}  # rows of the shards in work
        self._done: dict[int, set[str]] = {}
        self._running: dict[int, tuple[str, float]] = {}

    def begun(self, now: float, index: int, step: str, n_rows: int) -> None:
        """Note the beginning of a step; a shard that begins again loses this step and those after it."""
        self._sizes[index], self._running[index] = n_rows, (step, now)
        done = self._done.setdefault(index, set())
        for again in done & set(STEPS[STEPS.index(step) :]):
            self.rows[again] -= n_rows
            done.remove(again)
        for pool in self.pools:
            pool.see(now, sum(running in pool.steps for running, _ in self._running.values()))

    def ended(self, now: float, index: int, step: str, seconds: float | None = None) -> None:
        """Note the end of a step; `seconds`: its time without the loading of models, if it is known."""
        running = self._running.pop(index, None)
        if running is None or index not in self._sizes or step in self._done[index]:
            return
        n_rows = self._sizes[index]
        self._done[index].add(step)
        self.rows[step] += n_rows
        took = now - running[1] if seconds is None else seconds
        self.seconds[step] = self.seconds.get(step, 0.0) + took
        self.measured[step] += n_rows

    def lost(self, index: int) -> None:
        """Note that a step has ended without a result."""
        self._running.pop(index, None)

    def finished(self, index: int, n_rows: int) -> None:
        """Note that a shard needs no more steps: it is committed, or has failed."""
        for step in set(STEPS) - self._done.pop(index, set()):
            self.rows[step] += n_rows
        self._sizes.pop(index, None)
        self._running.pop(index, None)

    def fraction(self) -> float:
        """Return the share of the work that is done, in which each step weighs as much as it takes, if this is known."""
        costs = [self.cost(step) for step in STEPS]
        weights = [1.0] * len(STEPS) if None in costs else [cost or 0.0 for cost in costs]
        whole = sum(weights) * self.n_rows
        done = sum(weight * self.rows[step] for step, weight in zip(STEPS, weights, strict=True))
        return min(1.0, done / whole) if whole else 0.0

    def cost(self, step: str) -> float | None:
        """Return the seconds of a worker for a row; None before the end of the first such step."""
        return self.seconds[step] / self.measured[step] if self.measured[step] else None

    def step_left_s(self, step: str) -> float | None:
        """Return the seconds that a step still takes, without those of the others; None before the end of the first."""
        cost, size = self.cost(step), next((pool.size for pool in self.pools if step in pool.steps), 1)
        return None if cost is None else cost * max(0, self.n_rows - self.rows[step]) / size

    def remaining_s(self, now: float) -> float | None:
        """Estimate the remaining seconds; None as long as a step has not been measured."""
        costs = {step: self.cost(step) for step in STEPS}
        if None in costs.values():
            return None
        known = {step: cost or 0.0 for step, cost in costs.items()}
        left = {step: known[step] * max(0, self.n_rows - self.rows[step]) for step in STEPS}
        longest = 0.0
        for index, (step, start) in self._running.items():
            times = {step: known[step] * self._sizes[index] for step in STEPS[STEPS.index(step) :]}
            passed = min(now - start, times[step])
            left[step] -= min(passed, left[step])
            longest = max(longest, sum(times.values()) - passed)
        waits = [sum(left[step] for step in pool.steps) / pool.size for pool in self.pools]
        slowest = max(range(len(waits)), key=waits.__getitem__)
        size = max(self._sizes.values(), default=0)
        others = (step for i, pool in enumerate(self.pools) if i != slowest for step in pool.steps)
        return max(longest, waits[slowest] + sum(min(known[step] * size, left[step]) for step in others))


logger = logging.getLogger("hypergrit")


class Progress(Follower):
    """The counts of a job, and the thread that shows them."""

    def __init__(self, n_rows: int, config: PipelineConfig) -> None:
        self.n_rows, self.interval_s = n_rows, config.log.interval_s
        self.estimate = TimeLeft(n_rows, LOCAL if config.ray.runner == "local" else ON_RAY)
        self.counts = Counter[str]()  # of rows that were kept, dropped or not finished
        self.drops = Counter[str]()  # by stage
        self.steps = {stage: step for step, stages in steps_of(config).items() for stage in stages}
        names = {"parse": config.parse.model, "ground": config.ground.grounder, "score": config.score.scorer}
        self.models_of = {stage: str(name) for stage, name in names.items() if stage in self.steps and name != NO_MODEL}
        self.start = time.monotonic()
        self._loading: tuple[str, ...] = ()
        self._lock = threading.RLock()
        self._shown = ExitStack()
        if not config.quiet and has_bar():
            self._shown.enter_context(live(self.lines))
        elif not config.quiet:
            self._shown.callback(self._log)
            self._shown.enter_context(now_and_then(self._log, FIRST_S, self.interval_s))

    def loading(self, steps: Sequence[str]) -> None:
        """Note the steps whose models are being loaded."""
        self._loading = tuple(steps)

    def begun(self, index: int, step: str, n_rows: int) -> None:
        """Note the beginning of a step."""
        with self._lock:
            self.estimate.begun(time.monotonic(), index, step, n_rows)

    def ended(self, index: int, step: str, seconds: float | None = None) -> None:
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
            self.counts.update(result.rows)
            self.drops.update({stage: sum(reasons.values()) for stage, reasons in result.drops.items()})
            self.estimate.finished(result.index, sum(result.rows.values()))

    def values(self) -> dict[str, Any]:
        """Return the present counts, rows a second, the share of the work that is done, and the remaining seconds."""
        with self._lock:
            now = time.monotonic()
            done, left = self.counts.total(), self.estimate.remaining_s(now)
            return {
                "rows": self.n_rows,
                "finished": done,
                **{name: self.counts[name] for name in ("kept", "dropped", "unfinished")},
                "prepared": self.estimate.rows["prepare"],
                "grounded": self.estimate.rows["infer"],
                "share": round(self.estimate.fraction(), 4),
                "rows_per_s": round(done / max(now - self.start, 1e-9), 2),
                "left_s": None if left is None or done == self.n_rows else round(left, 1),
                "loading": list(
                    dict.fromkeys(self.models_of[name] for name in self.models_of if self._is_loading(name))
                ),
            }

    def _is_loading(self, stage: str) -> bool:
        return stage in self.models_of and self.steps[stage] in self._loading

    def close(self) -> None:
        """End the thread, and show the last state."""
        self._shown.close()

    def lines(self) -> Group:
        """Return a line for each stage, with its rows so far, and one for the job."""
        values = self.values()
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("stage", "passed", "kept", "dropped", "rows/s", "left", ""):
            is_name = title in ("stage", "")  # on a narrow terminal, the names of models that are loading are cut off
            table.add_column(title, justify="left" if is_name else "right", no_wrap=bool(title), overflow="ellipsis")
        with self._lock:
            kept = self.counts["kept"] + self.counts["dropped"]
            for stage, step in self.steps.items():
                passed, left, n = self.estimate.rows[step], self.estimate.step_left_s(step), self.drops[stage]
                kept -= n
                rate = f"{passed / max(time.monotonic() - self.start, 1e-9):,.1f}" if passed else ""
                what = f"loading {self.models_of[stage]}" if self._is_loading(stage) else ""
                cells = (stage, f"{passed:,}", Text(f"{kept:,}", "green"), Text(f"{n:,}", "red" if n else "dim"))
                table.add_row(*cells, rate, duration_text(left) if left else "", Text(what, "yellow"))
        bar, shown = Table.grid(padding=(0, 1)), {**values, "prepared": 0, "grounded": 0, "loading": ()}
        bar.add_row(ProgressBar(1.0, values["share"], width=16, complete_style="green"), Text(self.text(shown)))
        return Group(table, bar)

    def text(self, values: dict[str, Any]) -> str:
        """Return the line of the job."""
        text = f"{values['finished']:,} of {counted(self.n_rows, 'row')}, {values['share']:.0%} of the work"
        return ", ".join([text, *details(values)])

    def _log(self) -> None:
        values = self.values()
        logger.info("%s", self.text(values), extra={"progress": values})


@contextmanager
def live(lines: Callable[[], Group]) -> Iterator[None]:
    """Draw `lines` at the bottom of the terminal once a second; what is printed or logged meanwhile is above them."""
    terminal = sys.stderr
    with Live(get_renderable=lines, console=Console(stderr=True), refresh_per_second=1):
        handlers = [h for h in logging.getLogger().handlers if getattr(h, "stream", None) is terminal]
        moved = [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
        for handler in moved:
            handler.setStream(sys.stderr)
        try:
            yield
        finally:
            for handler in moved:
                handler.setStream(terminal)


def details(values: dict[str, Any]) -> list[str]:
    """Return the parts of a line on the progress after its number of rows."""
    parts = [f"loading {', '.join(values['loading'])}"] if values["loading"] else []
    parts += [f"{values[name]:,} {name}" for name in ("prepared", "grounded") if values[name] > values["finished"]]
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
        with followed_by(shown):
            for result in results:
                tell(Follower.finished, result)
                yield result
    finally:
        shown.close()
