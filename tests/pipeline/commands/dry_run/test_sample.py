"""The choice of the rows of a dry run."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from pipeline.commands.dry_run import Source, choose_rows
from pipeline.read.types import ShardPlan


def plans(n_shards: int, n_rows: int = 1000) -> list[ShardPlan]:
    return [ShardPlan(i, i * n_rows, n_rows, ()) for i in range(n_shards)]


def rows_of(found: object) -> list[int]:
    shards = found.values()  # type: ignore[attr-defined]
    return sorted(plan.first_row + row for sources in shards for plan, rows in sources for row in rows)


def n_rows_of(sources: Sequence[Source]) -> int:
    return sum(len(rows) for _, rows in sources)


@pytest.mark.parametrize(("n_shards", "n_rows"), [(1, 1), (1, 3), (3, 200), (1000, 200), (7, 5000)])
def test_each_run_of_the_input_gives_one_row(n_shards: int, n_rows: int) -> None:
    total = n_shards * 1000
    chosen = rows_of(choose_rows(plans(n_shards), n_rows, 1000, seed=0))
    assert len(set(chosen)) == n_rows
    bounds = [i * total // n_rows for i in range(n_rows)] + [total]
    assert all(start <= row < end for row, (start, end) in zip(chosen, pairwise(bounds), strict=True))


def test_sample_shards_are_no_larger_than_those_of_the_job_and_mix_the_whole_input() -> None:
    found = choose_rows(plans(100), 5000, 1000, seed=0)
    assert list(map(n_rows_of, found.values())) == [1000] * 5
    assert list(map(n_rows_of, choose_rows(plans(100), 40, 1000, seed=0).values())) == [10] * 4
    for sources in found.values():
        assert {plan.index for plan, _ in sources} == set(range(100))


def test_the_seed_decides_the_rows() -> None:
    first, again, other = (rows_of(choose_rows(plans(50), 200, 1000, seed)) for seed in (0, 0, 1))
    assert first == again != other


def test_all_rows_are_chosen_if_there_are_few() -> None:
    some = [ShardPlan(3, 40, 4, ()), ShardPlan(9, 80, 2, ())]
    assert rows_of(choose_rows(some, 100, 4, seed=0)) == [40, 41, 42, 43, 80, 81]
    assert choose_rows([], 100, 4, seed=0) == {}
