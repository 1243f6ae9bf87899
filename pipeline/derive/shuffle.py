"""Rows of a new shard of reshard: which rows of the source they are, and reading them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.derive.output import NewShard
from pipeline.derive.pick import pick_rows
from schemas.manifest import SourceShard
from schemas.rows import SCORED


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


@dataclass(frozen=True)
class Range:
    """Rows [first, end) of the kept and of the dropped rows of a group, in their new order."""

    group: Group
    kept: tuple[int, int]
    dropped: tuple[int, int]


@dataclass(frozen=True)
class ReshardedShard(NewShard):
    """A new shard with its rows."""

    ranges: tuple[Range, ...]


def permutation(n: int, *seed: int) -> list[int]:
    """Return a random order of n things, the same with every version of NumPy, which keeps the streams of PCG64."""
    return np.argsort(np.random.PCG64(seed).random_raw(n), kind="stable").tolist() if n else []


def make_table(shard: NewShard) -> pa.Table:
    """Return the rows of a new shard: the kept rows in their new order, then the dropped rows."""
    assert isinstance(shard, ReshardedShard)
    shuffle, seed = shard.origin["settings"]["shuffle"], shard.origin["settings"].get("seed", 0)
    kept, dropped = list[pa.Table](), list[pa.Table]()
    for part in shard.ranges:
        numbers = (2 * part.group.number + 1, 2 * part.group.number + 2)  # 0 is the order of the shards
        orders = [
            permutation(sum(counts), seed, number) if shuffle else list(range(sum(counts)))
            for counts, number in zip((part.group.kept, part.group.dropped), numbers, strict=True)
        ]
        found = read_range(part, *orders)
        kept.append(found[0])
        dropped.append(found[1])
    return pa.concat_tables([*kept, *dropped]) if kept else SCORED.empty_table()


def read_range(part: Range, kept_order: Sequence[int], dropped_order: Sequence[int]) -> tuple[pa.Table, pa.Table]:
    """Return the kept and the dropped rows of a range, each in their order; one source shard is read at a time."""
    group = part.group
    wanted_kept = kept_order[part.kept[0] : part.kept[1]]
    wanted_dropped = dropped_order[part.dropped[0] : part.dropped[1]]
    kept, dropped = list[pa.Table](), list[pa.Table]()
    kept_at, dropped_at = list[int](), list[int]()
    kept_start = dropped_start = 0
    shards = zip(group.sources, group.kept, group.dropped, group.later, strict=True)
    for source, n_kept, n_dropped, later in shards:
        mine = [(i, n - kept_start) for i, n in enumerate(wanted_kept) if kept_start <= n < kept_start + n_kept]
        lost = [
            (i, n - dropped_start)
            for i, n in enumerate(wanted_dropped)
            if dropped_start <= n < dropped_start + n_dropped
        ]
        if mine or lost:
            table = pick_rows(source, [n for _, n in mine], [n for _, n in lost], later)
            kept.append(table.slice(0, len(mine)))
            dropped.append(table.slice(len(mine)))
            kept_at += [i for i, _ in mine]
            dropped_at += [i for i, _ in lost]
        kept_start, dropped_start = kept_start + n_kept, dropped_start + n_dropped
    return in_order(kept, kept_at), in_order(dropped, dropped_at)


def in_order(tables: Sequence[pa.Table], places: Sequence[int]) -> pa.Table:
    """Join tables, and put each row in its place."""
    if not tables:
        return SCORED.empty_table()
    return pa.concat_tables(tables).take(np.argsort(np.array(places), kind="stable"))
