"""Intervals of the study: their coverage by simulation, and the verdicts that one-sided tests give."""

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

from demo.paper.statistics import Items, MeanWithError, crossed, layout, seeds_only
from hypergrit_common.errors import UserError

N = 1500


def coverage(n_seeds: int, deviations: tuple[float, float, float]) -> float:
    """Share of 95 % intervals that hold the true mean, 0, for deviations of seeds, items and the rest."""
    rng = np.random.default_rng(n_seeds)
    shapes = ((N, n_seeds, 1), (N, 1, 60), (N, n_seeds, 60))
    parts = [deviation * rng.standard_normal(shape) for deviation, shape in zip(deviations, shapes, strict=True)]
    return float(np.mean([crossed(cells).side == 0 for cells in parts[0] + parts[1] + parts[2]]))


@pytest.mark.parametrize("deviations", [(0, 0.5, 1), (0.15, 0, 1), (0.2, 0.5, 1), (0.5, 0.5, 1), (0.02, 1, 0.3)])
@pytest.mark.parametrize(
    ("n_seeds", "least", "most"), [(3, 0.93, 1.0), (5, 0.93, 0.97), (6, 0.93, 0.97), (10, 0.93, 0.97)]
)
def test_intervals_hold_the_true_mean_as_often_as_they_say(
    n_seeds: int, least: float, most: float, deviations: tuple[float, float, float]
) -> None:
    noise = 1.64 * (0.05 * 0.95 / N) ** 0.5  # of a share of N trials
    assert least - noise <= coverage(n_seeds, deviations) <= most + noise


def items(values: ArrayLike, units: ArrayLike | None = None) -> Items:
    """Items with these values, each a unit by itself without `units`."""
    return Items(np.asarray(values, float), np.arange(np.size(values)) if units is None else np.asarray(units))


def correct(share: float, seed: int, n: int = 400) -> Items:
    """n items of which about `share` are correct."""
    return items(np.random.default_rng(seed).random(n) < share)


def test_standard_error_has_the_variances_of_seeds_and_of_items() -> None:
    rng = np.random.default_rng(0)
    cells = rng.standard_normal((200, 1)) + 3 * rng.standard_normal((1, 4000)) + rng.standard_normal((200, 4000))
    expected = (1 / 200 + 9 / 4000 + 1 / (200 * 4000)) ** 0.5
    assert crossed(cells).error == pytest.approx(expected, rel=0.1)


def test_one_seed_has_the_interval_of_its_items() -> None:
    row = [correct(0.7, 0)]
    found = crossed(layout(row))
    assert found.value == pytest.approx(row[0].values.mean())
    assert found.error == pytest.approx(row[0].values.std(ddof=1) / 20)
    assert seeds_only([0.2]).half() == np.inf


def test_equal_rows_have_no_difference() -> None:
    cells = layout([correct(0.5, seed) for seed in (0, 1, 0, 1)])
    found = crossed(cells[:2] - cells[2:])
    assert (found.value, found.low, found.high, found.side) == (0, 0, 0, 0)


def test_items_of_one_unit_count_as_one() -> None:
    values = (np.random.default_rng(0).random(40) < 0.5).repeat(10)
    single = crossed(layout([items(values)]))
    grouped = crossed(layout([items(values, np.arange(400) // 10)]))
    assert grouped.value == pytest.approx(single.value)
    assert grouped.half() > 2.5 * single.half()


def test_units_of_unequal_size_keep_the_mean_of_the_items() -> None:
    row = [items([1, 0, 0, 0, 1, 0], [0, 1, 1, 1, 2, 2])]
    assert layout(row).mean() == pytest.approx(2 / 6)


def test_results_of_other_items_are_refused() -> None:
    with pytest.raises(UserError, match="different held-out items"):
        layout([correct(0.5, 0), correct(0.5, 0, 401)])


@pytest.mark.parametrize(
    ("value", "is_below", "is_within"), [(0.0, True, True), (-5.0, True, False), (1.9, False, False)]
)
def test_margins_need_one_sided_tests(value: float, is_below: bool, is_within: bool) -> None:
    found = MeanWithError(value, 0.5, 1000.0, 10, has_items=True)
    assert (found.is_below(2.0), found.is_within(2.0)) == (is_below, is_within)


def test_seeds_alone_have_students_t() -> None:
    values: NDArray[np.float64] = np.array([0.1, 0.2, 0.4])
    low, high = t.interval(0.95, 2, values.mean(), values.std(ddof=1) / 3**0.5)
    found = seeds_only(list(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert not found.has_items
