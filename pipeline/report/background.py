"""Rollups are written while the job runs, so that the report at its end reads one file for each thousand shards."""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from pipeline.report.rollup import MIN_SHARDS, roll_up
from pipeline.write.store import Store
from schemas.files import RETRY_FILE, SHARDS_PER_ROLLUP, rollup_of


class Rollups:
    """Writes the rollup of a thousand shards, in a thread, once all of them that a run computes have been reported.

    Thousands with few of these shards are left to the report, and so are outputs with shards of pipeline.retry. The
    caller holds the lease.
    """

    def __init__(self, store: Store, shards: Iterable[int]) -> None:
        self.store = store
        counts = Counter(map(rollup_of, shards))
        self.left = Counter({number: n for number, n in counts.items() if n >= MIN_SHARDS})
        if self.left and store.size(RETRY_FILE) is not None:
            self.left.clear()
        self.pool = ThreadPoolExecutor(1, "rollup")

    def __enter__(self) -> "Rollups":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(wait=True, cancel_futures=error is not None)

    def add(self, index: int) -> None:
        """Take note of a shard that has been committed or has failed."""
        number = rollup_of(index)
        if number not in self.left:
            return
        self.left[number] -= 1
        if not self.left[number]:
            first = number * SHARDS_PER_ROLLUP
            self.pool.submit(roll_up, self.store, number, range(first, first + SHARDS_PER_ROLLUP))
