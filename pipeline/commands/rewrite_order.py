"""Divide rows into shards of equal numbers of samples, shuffled across shards."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.commands.rewrite_rows import PartReader, SourcePart
from pipeline.output.source import concat
from pipeline.read.types import ShardPlan
from pipeline.run.derived import NewShard
from schemas.manifest import SourceShard

# Rows of a new shard: which rows of the sources they are, and reading them.

Order = NDArray[np.int64]
MIXED: Final = 64
"""Shards whose samples are mixed: a new shard reads the rows of at most so many, or of twice as many."""


@dataclass(frozen=True)
class Group:
    """Parts whose samples are mixed, with their numbers of kept rows; its own number decides the order."""

    number: int
    parts: list[SourcePart]
    kept: list[int]

    @cached_property
    def dropped(self) -> list[int]:
        """The numbers of dropped rows."""
        return [part.plan.n_rows - kept for part, kept in zip(self.parts, self.kept, strict=True)]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the identities of its parts, on all of which the order of its rows depends."""
        return hashlib.sha256(json.dumps([part.identity for part in self.parts]).encode()).hexdigest()

    def orders(self, settings: Mapping[str, Any]) -> tuple[Order, Order]:
        """Return the kept and the dropped rows of its parts, numbered one part after the other, in their new order.

        `settings` are those of the origin of a new shard.
        """
        counts = sum(self.kept), sum(self.dropped)
        if not settings["shuffle"]:
            return np.arange(counts[0]), np.arange(counts[1])
        numbers = 2 * self.number + 1, 2 * self.number + 2  # 0 is the order of the parts
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
class MixedShard(NewShard):
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


def make_mixed(shard: MixedShard, reader: PartReader) -> pa.Table:
    """Return the rows of a new shard: the kept rows in their new order, then the dropped rows; one part is read at a time."""
    tables, places = list[pa.Table](), list[int]()
    first_kept, first_dropped = 0, sum(part.kept[1] - part.kept[0] for part in shard.ranges)
    for part in shard.ranges:
        for place, kept, dropped in part.places(part.group.orders(shard.origin["settings"])):
            tables.append(reader.pick(part.group.parts[place], [n for _, n in kept], [n for _, n in dropped]))
            places += [first_kept + i for i, _ in kept] + [first_dropped + i for i, _ in dropped]
        first_kept += part.kept[1] - part.kept[0]
        first_dropped += part.dropped[1] - part.dropped[0]
    return concat(tables).take(np.argsort(np.array(places, np.int64), kind="stable"))


# The plan of the new shards.


def plan_order(parts: Sequence[SourcePart], kept: Sequence[int], settings: Mapping[str, Any]) -> list[MixedShard]:
    """Return the new shards: each has the next `samples_per_shard` kept rows, and its share of the dropped rows.

    `kept` has the number of rows of each part that are kept, and `settings` those of the command. Rows with different
    settings, models or versions get shards of their own, since a manifest names only one of each; the seed mixes these
    shards. Only manifests are read. The origin of a shard names the sources whose rows it holds; a hash stands for
    the others that were mixed with them, since these too decide which rows it has. The plans end where those of the
    sources end, so that they also bound the keys of an output whose first shards are missing (`key_end`).
    """
    groups = make_groups(parts, kept, settings)
    found = [
        (group[0].parts[0], ranges, sources)
        for group in groups
        for ranges, sources in with_sources(group, cut(group, settings["samples_per_shard"]), settings)
    ]
    if settings["shuffle"] and len(groups) > 1:
        n_groups = sum(map(len, groups))
        found = [found[i] for i in permutation(len(found), settings["seed"], 2 * n_groups + 1).tolist()]
    row = key_end(part.plan for part in parts) - sum(part.plan.n_rows for part in parts)
    shards = list[MixedShard]()
    for part, ranges, sources in found:
        n_rows = sum(r.kept[1] - r.kept[0] + r.dropped[1] - r.dropped[0] for r in ranges)
        mixed = hashlib.sha256(json.dumps([r.group.digest for r in ranges]).encode()).hexdigest()
        shards.append(
            MixedShard(
                ShardPlan(len(shards), row, n_rows, ()),
                part.provenance,
                {"command": "rewrite", "sources": sources, "settings": {**settings, "mixed": mixed}},
                ranges,
            )
        )
        row += n_rows
    return shards


def key_end(plans: Iterable[ShardPlan]) -> int:
    """Return a number above the keys of all rows of an output, as integers.

    Every command keeps this rule: no key of an output reaches the end of the rows that its plans count.
    """
    return max(plan.first_row + plan.n_rows for plan in plans)


def make_groups(parts: Sequence[SourcePart], kept: Sequence[int], settings: Mapping[str, Any]) -> list[list[Group]]:
    """Return the groups of parts with equal provenance, for each provenance; without shuffling, a part is a group.

    The order of the parts depends on the seed.
    """
    order, size = list(range(len(parts))), 1
    if settings["shuffle"]:
        order = permutation(len(parts), settings["seed"], 0).tolist()
        size = MIXED
    alike: dict[str, list[int]] = {}
    for i in order:
        alike.setdefault(json.dumps(parts[i].provenance, sort_keys=True), []).append(i)
    found, number = list[list[Group]](), count()
    for places in alike.values():
        chunks = (places[first : first + size] for first in range(0, len(places), size))
        found.append([Group(next(number), [parts[i] for i in chosen], [kept[i] for i in chosen]) for chosen in chunks])
    return found


def cut(groups: Sequence[Group], samples_per_shard: int) -> list[tuple[Range, ...]]:
    """Return the rows of the new shards that the rows of `groups` give."""
    n_kept, n_dropped = sum(sum(group.kept) for group in groups), sum(sum(group.dropped) for group in groups)
    n_shards = max(1, -(-n_kept // samples_per_shard))
    kept_cuts = [min(i * samples_per_shard, n_kept) for i in range(n_shards + 1)]
    dropped_cuts = [i * n_dropped // n_shards for i in range(n_shards + 1)]
    kept_starts = [0, *accumulate(sum(group.kept) for group in groups)]
    dropped_starts = [0, *accumulate(sum(group.dropped) for group in groups)]
    kept, dropped = overlaps(kept_cuts, kept_starts), overlaps(dropped_cuts, dropped_starts)
    parts: list[list[Range]] = [[] for _ in range(n_shards)]
    for shard, group in sorted(kept.keys() | dropped.keys()):
        pair = kept.get((shard, group), (0, 0)), dropped.get((shard, group), (0, 0))
        parts[shard].append(Range(groups[group], *pair))
    return list(map(tuple, parts))


def overlaps(cuts: Sequence[int], starts: Sequence[int]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the rows [first, end) of a group, counted from its first, that each shard has: (shard, group) -> rows.

    Shard i has the rows from cuts[i] to cuts[i + 1], group g those from starts[g] to starts[g + 1]; both have all rows.
    """
    found = dict[tuple[int, int], tuple[int, int]]()
    for first, end in pairwise(sorted({*cuts, *starts})):
        shard, group = bisect_right(cuts, first) - 1, bisect_right(starts, first) - 1
        found[shard, group] = first - starts[group], end - starts[group]
    return found


def with_sources(
    groups: Sequence[Group], parts: Sequence[tuple[Range, ...]], settings: Mapping[str, Any]
) -> Iterator[tuple[tuple[Range, ...], list[SourceShard]]]:
    """Yield the rows of each new shard with the shards of the sources that have them.

    The order of one group at a time is in memory.
    """
    found: list[list[SourceShard]] = [[] for _ in parts]
    by_group: dict[int, list[tuple[int, Range]]] = {}
    for i, ranges in enumerate(parts):
        for part in ranges:
            by_group.setdefault(part.group.number, []).append((i, part))
    for group in groups:
        orders = group.orders(settings)
        for i, part in by_group.get(group.number, []):
            found[i] += [group.parts[place].source for place in part.shards(orders)]
    yield from zip(parts, found, strict=True)
