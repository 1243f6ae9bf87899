"""Rows of a new shard of reshard: which rows of the source they are, and reading them."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.derive.output import NewShard
from pipeline.derive.pick import pick_rows
from schemas.manifest import SourceShard
from schemas.rows import SCORED

Order = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Shards of the source whose samples are mixed.

    Each has its numbers of kept and of dropped rows, and the indices of later attempts of pipeline.retry: their rows are
    not among its dropped rows.
    """

    number: int
    sources: list[SourceShard]
    kept: list[int]
    dropped: list[int]
    later: list[tuple[int, ...]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the identities of its shards, on all of which the order of its rows depends."""
        return hashlib.sha256(json.dumps(self.sources).encode()).hexdigest()

    def orders(self, settings: dict[str, Any]) -> tuple[Order, Order]:
        """Return the kept and the dropped rows of its shards, numbered one shard after the other, in their new order.

        `settings` are those of the origin of a new shard.
        """
        counts = sum(self.kept), sum(self.dropped)
        if not settings["shuffle"]:
            return np.arange(counts[0]), np.arange(counts[1])
        numbers = 2 * self.number + 1, 2 * self.number + 2  # 0 is the order of the shards
        kept, dropped = (permutation(n, settings["seed"], number) for n, number in zip(counts, numbers, strict=True))
        return kept, dropped


@dataclass(frozen=True)
class Range:
    """Rows [first, end) of the kept and of the dropped rows of a group, in their new order."""

    group: Group
    kept: tuple[int, int]
    dropped: tuple[int, int]

    def shards(self, orders: tuple[Order, Order]) -> list[int]:
        """Return the places in the group of the shards that have rows of the range. `orders` are those of the group."""
        chosen = orders[0][slice(*self.kept)], orders[1][slice(*self.dropped)]
        counts = self.group.kept, self.group.dropped
        return np.union1d(*map(shard_of, chosen, counts)).tolist()

    def places(self, orders: tuple[Order, Order]) -> Iterator[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]]:
        """Yield the place in the group of each shard that has rows of the range, with these kept and dropped rows.

        A row is its place in the range and its number among those of the shard. `orders` are those of the group.
        """
        kept = in_shards(orders[0][slice(*self.kept)], self.group.kept)
        dropped = in_shards(orders[1][slice(*self.dropped)], self.group.dropped)
        for place in sorted(kept.keys() | dropped.keys()):
            yield place, kept.get(place, []), dropped.get(place, [])


@dataclass(frozen=True)
class ReshardedShard(NewShard):
    """A new shard with its rows."""

    ranges: tuple[Range, ...]


def permutation(n: int, *seed: int) -> Order:
    """Return a random order of n things, the same with every version of NumPy, which keeps the streams of PCG64."""
    return np.argsort(np.random.PCG64(seed).random_raw(n), kind="stable") if n else np.arange(0)


def shard_of(rows: Order, counts: Sequence[int]) -> Order:
    """Return the place of the shard that has each row; `rows` are numbered through all shards, which have `counts` rows."""
    return np.searchsorted(np.cumsum(counts), rows, side="right")


def in_shards(rows: Order, counts: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
    """Return rows by the place of the shard that has them (`shard_of`), each with its place in `rows` and its number in it."""
    shards = shard_of(rows, counts)
    numbers = rows - (np.cumsum(counts) - counts)[shards]
    found: dict[int, list[tuple[int, int]]] = {}
    for i, (shard, number) in enumerate(zip(shards.tolist(), numbers.tolist(), strict=True)):
        found.setdefault(shard, []).append((i, number))
    return found


def make_table(shard: NewShard) -> pa.Table:
    """Return the rows of a new shard: the kept rows in their new order, then the dropped rows."""
    assert isinstance(shard, ReshardedShard)
    kept, dropped = list[pa.Table](), list[pa.Table]()
    for part in shard.ranges:
        found = read_range(part, part.group.orders(shard.origin["settings"]))
        kept.append(found[0])
        dropped.append(found[1])
    return pa.concat_tables([*kept, *dropped]) if kept else SCORED.empty_table()


def read_range(part: Range, orders: tuple[Order, Order]) -> tuple[pa.Table, pa.Table]:
    """Return the kept and the dropped rows of a range, each in their order; one source shard is read at a time."""
    kept, dropped = list[pa.Table](), list[pa.Table]()
    kept_at, dropped_at = list[int](), list[int]()
    for place, mine, lost in part.places(orders):
        table = pick_rows(
            part.group.sources[place], [n for _, n in mine], [n for _, n in lost], part.group.later[place]
        )
        kept.append(table.slice(0, len(mine)))
        dropped.append(table.slice(len(mine)))
        kept_at += [i for i, _ in mine]
        dropped_at += [i for i, _ in lost]
    return in_order(kept, kept_at), in_order(dropped, dropped_at)


def in_order(tables: Sequence[pa.Table], places: Sequence[int]) -> pa.Table:
    """Join tables, and put each row in its place."""
    if not tables:
        return SCORED.empty_table()
    return pa.concat_tables(tables).take(np.argsort(np.array(places), kind="stable"))
