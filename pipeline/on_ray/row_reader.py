"""An actor that reads the rows of parquet files for all workers, so that each row group is decoded once."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError

from pipeline.read.ahead import Packed, can_be_ahead, pack_rows
from pipeline.read.config import ReadConfig
from pipeline.read.types import ShardPlan

FIRST: Final = 32
"""Shards that workers read themselves before a reader is started: a small job ends sooner without one."""
MAX_WAITING: Final = 64
"""Shards that wait for the reader at most. Workers read the others themselves, such as at the start of a large job."""
RESTARTS: Final = 20
"""Number of times that Ray starts a lost reader again, on any node."""
FETCH_S: Final = 60.0
"""Time that a worker waits for the rows of a shard before it reads them itself."""
SLOW_FETCH_S: Final = 1.0
"""The same after a shard for which it waited in vain."""

_wait_s = FETCH_S

logger = logging.getLogger("hypergrit")


class RowReader:
    """Reads the rows of shards in their order. It leaves files to the workers that have images or large rows."""

    def __init__(self, config: ReadConfig) -> None:
        self.config = config
        self.left_to_workers: set[str] = set()

    def read(self, plan: ShardPlan) -> Packed | None:
        """Return the rows of a shard, or None: then its worker reads them, and reports what is wrong with them."""
        paths = {piece.path for piece in plan.pieces}
        if paths & self.left_to_workers:
            return None
        try:
            packed = pack_rows(plan, self.config)
        except Exception as error:
            logger.debug("shard %d is read by its worker: %s", plan.index, error)
            return None
        if packed is None:
            self.left_to_workers |= paths
        return packed


class RowsAhead:
    """Asks a `RowReader` for the rows of parquet files. Each shard is asked for once, since a reader never goes back."""

    def __init__(self, config: ReadConfig) -> None:
        self.config = config
        self.actor: Any = None
        self.n_seen = 0
        self.last = -1
        self.waiting: deque[Any] = deque()

    def of(self, plan: ShardPlan) -> list[Any]:
        """Return a list with a reference to the rows of a shard, or none. A list is passed on by Ray without a wait."""
        if plan.index <= self.last or not can_be_ahead(plan):
            return []
        self.last = plan.index
        self.n_seen += 1
        if self.n_seen <= FIRST or self.is_behind():
            return []
        if self.actor is None:
            actor_class: Any = ray.remote(RowReader)
            self.actor = actor_class.options(num_cpus=0, max_restarts=RESTARTS).remote(self.config)
        self.waiting.append(self.actor.read.remote(plan))
        return [self.waiting[-1]]

    def is_behind(self) -> bool:
        """Return True if the reader has as many shards to read as may wait; it reads them in their order."""
        while self.waiting and ray.wait([self.waiting[0]], timeout=0, fetch_local=False)[0]:
            self.waiting.popleft()
        return len(self.waiting) >= MAX_WAITING


def fetch_rows(rows: Sequence[Any]) -> Packed | None:
    """Return the rows that `RowsAhead.of` refers to; None if the reader has none, was lost or takes too long."""
    global _wait_s
    if not rows:
        return None
    try:
        found: Packed | None = ray.get(rows[0], timeout=_wait_s)
    except GetTimeoutError:
        _wait_s = SLOW_FETCH_S
        return None
    except RayError as error:
        logger.debug("the rows of a shard are not there: %s", error)
        return None
    _wait_s = FETCH_S
    return found
