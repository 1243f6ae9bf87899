"""Divide the rows of an output into shards of equal numbers of samples, shuffled across shards."""

import hashlib
import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.derive.combine import key_end, new_provenance, provenances
from pipeline.derive.options import ReshardOptions
from pipeline.derive.output import write_output
from pipeline.derive.settings import new_config, take_options, take_path
from pipeline.derive.shuffle import Group, Range, ReshardedShard, make_table, permutation
from pipeline.derive.source import Source
from pipeline.read.types import ShardPlan
from pipeline.write.attempts import group_attempts, n_left
from schemas.manifest import Origin, SourceShard


def reshard(arguments: Sequence[str]) -> int:
    """Write the output; return the number of shards that failed. Raises UserError."""
    output, rest = take_path(arguments, "output")
    folder, rest = take_path(rest, "source")
    if not any(item.startswith("samples_per_shard=") for item in rest):
        raise UserError("samples_per_shard is not set; give samples_per_shard=N, such as 10000")
    options, changes = take_options(rest, ReshardOptions)
    source = Source(folder, options.incomplete)
    old = source.config
    new = new_config(source.store, changes, output, "reshard")
    if len(provenances([source])) > 1:
        raise UserError(
            f"{folder} holds shards with different settings, models or versions (merge with mixed=true), and a shard "
            "has only one of each; reshard the sources of the merge instead"
        )
    return write_output(make_table, plan_reshard(source, old, new, options), new, source.left_out)


def make_groups(source: Source, options: ReshardOptions) -> list[Group]:
    """Return the groups of the source's shards, whose order depends on the seed; without shuffling, one for each.

    A dropped row that pipeline.retry tried again counts in its last attempt only.
    """
    left, later = dict[int, int](), dict[int, tuple[int, ...]]()
    for attempts in group_attempts(source.manifests.values()):
        shards = tuple(manifest["shard"] for manifest in attempts)
        left |= zip(shards, n_left(attempts), strict=True)
        later |= {shard: shards[i:] for i, shard in enumerate(shards, 1)}
    indices, size = list(source.manifests), 1
    if options.shuffle:
        indices = [indices[i] for i in permutation(len(indices), options.seed, 0).tolist()]
        size = options.mix_shards or len(indices)
    groups = list[Group]()
    for first in range(0, len(indices), size):
        chosen = indices[first : first + size]
        kept = [source.manifests[index]["counts"]["kept"] for index in chosen]
        dropped = [left[index] for index in chosen]
        sources = [source.shard(index) for index in chosen]
        groups.append(Group(len(groups), sources, kept, dropped, [later[index] for index in chosen]))
    return groups


def plan_reshard(
    source: Source, old: PipelineConfig, new: PipelineConfig, options: ReshardOptions
) -> list[ReshardedShard]:
    """Return the new shards: each has the next `samples_per_shard` kept rows, and its share of the dropped rows.

    Only manifests are read. The origin of a shard names the sources whose rows it holds; a hash stands for the others
    that were mixed with them, since these too decide which rows it has. Rows keep their keys. The plans end where those
    of the source end, so that they also bound the keys of an output whose first shards are missing (`key_end`).
    """
    groups = make_groups(source, options)
    n_kept, n_dropped = sum(sum(group.kept) for group in groups), sum(sum(group.dropped) for group in groups)
    n_shards = max(1, -(-n_kept // options.samples_per_shard))
    kept_cuts = [min(i * options.samples_per_shard, n_kept) for i in range(n_shards + 1)]
    dropped_cuts = [i * n_dropped // n_shards for i in range(n_shards + 1)]
    kept_starts = [0, *accumulate(sum(group.kept) for group in groups)]
    dropped_starts = [0, *accumulate(sum(group.dropped) for group in groups)]
    settings: dict[str, Any] = {"samples_per_shard": options.samples_per_shard, "shuffle": options.shuffle}
    settings |= {"seed": options.seed, "mix_shards": options.mix_shards} if options.shuffle else {}
    parts = list[tuple[Range, ...]]()
    first_group = 0
    for i in range(n_shards):
        ranges = list[Range]()
        while first_group < len(groups) - 1 and kept_starts[first_group + 1] <= kept_cuts[i] and (
            dropped_starts[first_group + 1] <= dropped_cuts[i]
        ):  # fmt: skip
            first_group += 1
        for g in range(first_group, len(groups)):
            kept = overlap(kept_cuts[i], kept_cuts[i + 1], kept_starts[g], kept_starts[g + 1])
            dropped = overlap(dropped_cuts[i], dropped_cuts[i + 1], dropped_starts[g], dropped_starts[g + 1])
            if kept[0] < kept[1] or dropped[0] < dropped[1]:
                ranges.append(Range(groups[g], kept, dropped))
            if kept_starts[g + 1] >= kept_cuts[i + 1] and dropped_starts[g + 1] >= dropped_cuts[i + 1]:
                break
        parts.append(tuple(ranges))
    provenance = new_provenance(next(iter(source.manifests.values())), source, old, new)
    shards = list[ReshardedShard]()
    row = key_end(source) - n_kept - n_dropped
    for i, (part, sources) in enumerate(zip(parts, held_sources(groups, parts, settings), strict=True)):
        n_rows = sum(r.kept[1] - r.kept[0] + r.dropped[1] - r.dropped[0] for r in part)
        plan = ShardPlan(i, row, n_rows, ())
        digests = json.dumps([r.group.digest for r in part])
        mixed = {"manifests": hashlib.sha256(digests.encode()).hexdigest()}
        origin: Origin = {"command": "reshard", "sources": sources, "settings": settings | mixed}
        shards.append(ReshardedShard(plan, provenance, origin, part))
        row += n_rows
    return shards


def held_sources(
    groups: Sequence[Group], parts: Sequence[Sequence[Range]], settings: dict[str, Any]
) -> list[list[SourceShard]]:
    """Return the shards of the source whose rows each new shard holds; `parts` are the rows of the new shards.

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
            found[i] += [group.sources[place] for place in part.shards(orders)]
    return found


def overlap(first: int, end: int, start: int, stop: int) -> tuple[int, int]:
    """Return the part of [first, end) that is in [start, stop), counted from `start`; (0, 0) if they do not overlap."""
    low, high = max(first, start), min(end, stop)
    return (low - start, high - start) if low < high else (0, 0)
