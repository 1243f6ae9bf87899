"""Add up the summaries of an output, a thousand shards at a time: a rollup counts where there is one.

    arrow/ of a shard -> _summaries/ -> _rollup/, 1,000 shards each -> the whole output

Memory does not grow with the number of shards, but for their indices and the sizes of their manifests.
"""

import sys
from collections.abc import Collection
from typing import Final, TypeVar

from tqdm import tqdm

from common.remote import map_concurrently
from pipeline.report.rollup import NOTHING, Keeping, Part, read_part
from pipeline.report.timings import Speeds, add_speeds
from pipeline.summary.summary import Summary
from pipeline.write.layout import shard_sizes
from pipeline.write.store import Store
from schemas.attempts import shard_of
from schemas.files import MANIFEST_FILE, MANIFEST_FOLDER, ROLLUP_FILE, ROLLUP_FOLDER, rollup_of

AT_A_TIME: Final = 4
"""Rollups that are read at the same time."""

Item = TypeVar("Item")


def collect(store: Store, only: Collection[int] | None = None, keeping: Keeping = NOTHING) -> Part:
    """Return the statistics of the finished shards, or of those of the job with an index in `only`, with all attempts.

    Raises UserError for a damaged shard or one of another major schema version, and ValueError if the counts of one do
    not add up.
    """
    groups = finished_shards(store, only)
    rollups = set(store.names(ROLLUP_FOLDER))
    if keeping.rollups:
        remove_stale(store, rollups, groups.keys())
    shards, summary, speeds = list[int](), Summary(), Speeds()

    def read(number: int) -> Part:
        has_rollup = ROLLUP_FILE.format(number).rpartition("/")[2] in rollups
        return read_part(store, number, groups[number], has_rollup, keeping)

    hidden = not sys.stderr.isatty() or len(groups) < AT_A_TIME
    with tqdm(total=len(groups), desc="statistics", unit=" thousand shards", disable=hidden) as bar:
        for part in map_concurrently(read, sorted(groups), AT_A_TIME):
            shards += part.shards
            summary.merge(part.summary)
            add_speeds(speeds, part.speeds)
            bar.update()
    summary.totals.shrink()
    return Part(sorted(shards), summary, speeds)


def finished_shards(store: Store, only: Collection[int] | None) -> dict[int, dict[int, int]]:
    """Return the bytes of the manifests of the finished shards: number of the rollup -> index -> bytes."""
    chosen = None if only is None else set(only)
    groups: dict[int, dict[int, int]] = {}
    for name, n_bytes in shard_sizes(store, MANIFEST_FOLDER):
        index = store.layout.parse(name.removesuffix(MANIFEST_FILE.suffix))
        if index is None or not name.endswith(MANIFEST_FILE.suffix):
            continue
        if chosen is None or index in chosen or shard_of(index) in chosen:
            groups.setdefault(rollup_of(index), {})[index] = n_bytes
    return groups


def remove_stale(store: Store, rollups: Collection[str], numbers: Collection[int]) -> None:
    """Remove the rollups in which no shard is finished any more."""
    wanted = {ROLLUP_FILE.format(number).rpartition("/")[2] for number in numbers}
    store.remove_many(f"{ROLLUP_FOLDER}/{name}" for name in rollups if name not in wanted)
