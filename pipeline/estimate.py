"""Estimate the progress and the remaining time of a job from the steps of its shards.

A step takes the same time for each row. Steps that share workers form a pool, which is as large as the number of steps
that it has computed at the same time. The remaining work of each pool, divided by its size, is a lower bound of the
remaining time; the slowest pool decides, and the last shard passes the other steps once more. No shard in work ends before
its own steps have.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

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
class Estimate:
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
