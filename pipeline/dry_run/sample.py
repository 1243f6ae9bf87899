"""Choose the rows of a sample: spread over the whole input, the same for the same seed."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from random import Random
from typing import Final

from pipeline.read.types import ShardPlan

LEAST_SHARDS: Final = 4
"""Sample shards, if there are as many rows: the times of a stage differ from shard to shard."""

Source = tuple[ShardPlan, tuple[int, ...]]
"""A shard of the job, and the positions in it of the chosen rows."""
Samples = Mapping[int, Sequence[Source]]
"""Index of a sample shard -> where its rows are."""


def choose_rows(plans: Sequence[ShardPlan], n_rows: int, rows_per_shard: int, seed: int) -> Samples:
    """Choose `n_rows` rows of all plans, or all of them if there are fewer, and deal them out to sample shards.

    The rows are divided into `n_rows` runs of equal length, and one row of each run is chosen at random. Each sample
    shard gets rows of the whole input, at most `rows_per_shard`.
    """
    ends = list(accumulate(plan.n_rows for plan in plans))
    total = ends[-1] if ends else 0
    n_rows, random = min(n_rows, total), Random(f"dry run {seed}")
    bounds = [i * total // n_rows for i in range(n_rows)] + [total] if n_rows else []
    chosen = [random.randrange(start, end) for start, end in pairwise(bounds)]
    n_shards = min(max(-(-n_rows // rows_per_shard), LEAST_SHARDS), n_rows)
    samples: dict[int, list[Source]] = {}
    for shard in range(n_shards):
        by_plan: dict[int, list[int]] = {}
        for row in chosen[shard::n_shards]:
            number = bisect_right(ends, row)
            by_plan.setdefault(number, []).append(row - (ends[number] - plans[number].n_rows))
        samples[shard] = [(plans[number], tuple(rows)) for number, rows in by_plan.items()]
    return samples


def sample_plans(samples: Samples) -> list[ShardPlan]:
    """Return a plan for each sample shard; it has no pieces of files, since `SampleSteps` knows where its rows are."""
    return [ShardPlan(index, 0, sum(len(rows) for _, rows in found), ()) for index, found in samples.items()]
