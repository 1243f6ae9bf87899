"""Read the summaries of up to 1,000 shards, from their rollup or one by one, and write rollups.

A rollup counts while exactly the shards in it are finished and their manifests have the same sizes. Whoever commits a
shard removes the rollup of its thousand first (pipeline.write), and only holders of the lease write one: it can
therefore not describe earlier files of a shard.
"""

import json
import logging
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from common.errors import UserError
from common.remote import map_concurrently
from pipeline.report.ledger import count_shard, stamp_of, write_summary
from pipeline.report.shards import parse_manifests
from pipeline.report.timings import Speeds, read_speeds, sum_timings
from pipeline.summary.summary import Summary, SummaryFile, parse_summary
from pipeline.write.attempts import group_attempts
from pipeline.write.store import Store
from schemas.files import MANIFEST_FILE, ROLLUP_FILE, ROLLUP_TIMINGS_FILE, SUMMARY_FILE
from schemas.layout import ShardFile

logger = logging.getLogger("hypergrit")

MIN_SHARDS: Final = 32
"""Shards from which on a rollup is written: fewer summaries are read as fast."""


class Part(NamedTuple):
    """Up to 1,000 shards: the indices of those that are finished, their statistics and the time of each stage."""

    shards: list[int]
    summary: Summary
    speeds: Speeds


class Keeping(NamedTuple):
    """Permissions of a reader to store summaries of shards that lack one, and rollups, which needs the lease."""

    summaries: bool = False
    rollups: bool = False


NOTHING: Final = Keeping()


def read_part(
    store: Store, number: int, sizes: Mapping[int, int], has_rollup: bool, keeping: Keeping = NOTHING
) -> Part:
    """Return the statistics of the shards in `sizes`, index -> bytes of the manifest, which belong to one rollup.

    Raises UserError for a damaged shard, and ValueError if the counts of one do not add up.
    """
    rollup = ROLLUP_FILE.format(number)
    summary = parse_summary(store.read(rollup), sizes) if has_rollup else None
    if summary is not None:
        speeds = read_speeds(store, ROLLUP_TIMINGS_FILE.format(number))
        return Part(sorted(sizes), summary, sum_timings(store, sizes) if speeds is None else speeds)
    part, found = fold_part(store, sizes, keeping.summaries)
    if keeping.rollups and len(found) >= MIN_SHARDS:
        write_rollup(store, number, part, found)
    elif keeping.rollups and has_rollup:
        store.remove([rollup, ROLLUP_TIMINGS_FILE.format(number)])
    return part


def fold_part(store: Store, indices: Collection[int], keep: bool) -> tuple[Part, dict[int, int]]:
    """Add up the summaries of finished shards; also return the sizes of their manifests.

    Summaries that are missing, or not those of the present manifests, are computed from arrow/, and stored if `keep`.
    """
    contents = {i: content for i, content in read_files(store, MANIFEST_FILE, indices).items() if content is not None}
    manifests = parse_manifests(
        store, {store.file(MANIFEST_FILE, index): content for index, content in contents.items()}
    )
    found = {manifest["shard"]: len(contents[manifest["shard"]]) for manifest in manifests}
    stored = read_files(store, SUMMARY_FILE, found)
    summary = Summary()
    for attempts in group_attempts(manifests):
        stamps = {manifest["shard"]: stamp_of(contents[manifest["shard"]]) for manifest in attempts}
        own = parse_summary(stored[attempts[-1]["shard"]], stamps)
        if own is None:
            own = write_summary(store, attempts, stamps) if keep else count_shard(store, attempts)
            own.totals.shrink()
        summary.merge(own)
    summary.totals.shrink()
    return Part(sorted(found), summary, sum_timings(store, found)), found


def read_files(store: Store, kind: ShardFile, indices: Collection[int]) -> dict[int, bytes | None]:
    """Read one file of each shard; None for those that do not exist."""
    contents = map_concurrently(lambda index: store.read(store.file(kind, index)), indices)
    return dict(zip(indices, contents, strict=True))


def write_rollup(store: Store, number: int, part: Part, sizes: Mapping[int, int]) -> None:
    """Write the rollup of shards, whose manifests have these sizes, and their timings. Needs the lease."""
    store.write(ROLLUP_TIMINGS_FILE.format(number), json.dumps(part.speeds, sort_keys=True))
    store.write_bytes(ROLLUP_FILE.format(number), SummaryFile(sizes, part.summary).to_bytes())


def roll_up(store: Store, number: int, indices: Collection[int]) -> None:
    """Write the rollup of those of `indices` that are finished, while a job that holds the lease goes on.

    An error costs only time: the report reads the summaries then.
    """
    try:
        part, sizes = fold_part(store, indices, keep=True)
        if len(sizes) >= MIN_SHARDS:
            write_rollup(store, number, part, sizes)
    except (UserError, OSError, ValueError) as error:
        logger.warning("the statistics of shards %d to %d are left to the report: %s",
                       min(indices), max(indices), error)  # fmt: skip
