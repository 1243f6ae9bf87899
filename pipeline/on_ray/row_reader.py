"""An actor that reads the rows of parquet files for all workers, so that each row group is decoded once."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError

from pipeline.read.ahead import Packed, is_parquet, pack_rows
from pipeline.read.config import ReadConfig
from pipeline.read.types import ShardPlan

FETCH_S: Final = 60.0
"""Time that a worker waits for the rows of a shard before it reads them itself, and for no other shard after it."""

FIRST: Final = 32
"""Shards that workers read themselves before a reader is started: a small job ends sooner without one."""

_wait_s = FETCH_S
"""FETCH_S, or 0 once a reader was too slow in this process."""

logger = logging.getLogger("hypergrit")


class RowReader:
    """Reads the rows of shards in their order. It gives up for good at what it does not read: images, large rows."""

    def __init__(self, config: ReadConfig) -> None:
        self.config, self.has_given_up = config, False

    def read(self, plan: ShardPlan) -> Packed | None:
        """Return the rows of a shard, or None: then its worker reads them, and reports what is wrong with them."""
        packed: Packed | None = None
        if not self.has_given_up:
            try:
                packed = pack_rows(plan, self.config)
            except Exception as error:
                logger.debug("shard %d is read by its worker: %s", plan.index, error)
            else:
                self.has_given_up = packed is None
        return packed


class RowsAhead:
    """Asks a `RowReader` for the rows of parquet files. Each shard is asked for once, since a reader never goes back."""

    def __init__(self, config: ReadConfig) -> None:
        self.config = config
        self.actor: Any = None
        self.n_seen = 0
        self.last = -1

    def of(self, plan: ShardPlan) -> list[Any]:
        """Return a list with a reference to the rows of a shard, or none. A list is passed on by Ray without a wait."""
        if plan.index <= self.last or not is_parquet(plan):
            return []
        self.last = plan.index
        self.n_seen += 1
        if self.n_seen <= FIRST:
            return []
        if self.actor is None:
            actor_class: Any = ray.remote(RowReader)
            self.actor = actor_class.options(num_cpus=0).remote(self.config)
        return [self.actor.read.remote(plan)]


def fetch_rows(rows: Sequence[Any]) -> Packed | None:
    """Return the rows that `RowsAhead.of` refers to; None if the reader has none, was lost or takes too long."""
    global _wait_s
    try:
        found: Packed | None = ray.get(rows[0], timeout=_wait_s) if rows else None
    except RayError as error:
        logger.debug("the rows of a shard are not there: %s", error)
        _wait_s = 0.0 if isinstance(error, GetTimeoutError) else _wait_s
        return None
    return found
