"""Means and intervals of the miniature study, against metrics of the trainer and known distributions."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from demo.paper.statistics import above, difference, estimate, replicate
from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.items import Items, mean_items, pair_items

N = 400


def correct(share: float, seed: int, n: int = N) -> Items:
    """n items of which about `share` are correct."""
    return mean_items(torch.from_numpy(np.random.default_rng(seed).random(n) < share))


def scores(reduction: str, seed: int = 0) -> Items:
    rng = np.random.default_rng(seed)
    true, other = torch.from_numpy(rng.integers(3, 12, 30)), torch.from_numpy(rng.integers(0, 9, 200))
    units = torch.arange(30), torch.arange(200) % 30
    return pair_items(true, other, units, reduction)  # type: ignore[arg-type]


def ones(items: Items) -> NDArray[np.float64]:
    return np.ones((1, len(items.values)))


def test_estimate_has_the_sample_deviation_and_none_with_one_seed() -> None:
    assert estimate([0.2, 0.4]) == (pytest.approx(0.3), pytest.approx(0.2 / np.sqrt(2)), 2)
    assert estimate([0.2]) == (0.2, None, 1)


@pytest.mark.parametrize("reduction", ["auc", "ap"])
def test_unit_weights_give_the_metric_with_its_ties(reduction: str) -> None:
    items = scores(reduction)
    assert replicate(items, ones(items))[0] == pytest.approx(items.metric(), abs=1e-12)


@pytest.mark.parametrize("reduction", ["auc", "ap"])
def test_a_weight_of_two_is_the_same_as_an_item_twice(reduction: str) -> None:
    items = scores(reduction)
    weights = ones(items)
    weights[0, :5] = 2
    twice = [np.concatenate([part, part[:5]]) for part in (items.values, items.units, items.is_true)]
    # A true pair that counts twice gives the mismatched pairs twice its share of weight in `ap` as well.
    doubled = Items(values=twice[0], units=twice[1], is_true=twice[2], reduction=items.reduction)
    assert replicate(items, weights)[0] == pytest.approx(doubled.metric(), abs=1e-12)


def test_equal_rows_have_no_difference() -> None:
    row = [correct(0.5, 0), correct(0.5, 1)]
    assert difference(row, row, 200) == (0, 0, 0)


def test_interval_of_one_seed_is_that_of_the_paired_items() -> None:
    first, second = correct(0.7, 0), correct(0.5, 1)
    found = difference([first], [second], 2000)
    paired = first.values - second.values
    half = 1.96 * paired.std() / np.sqrt(N)
    assert found.value == pytest.approx(paired.mean())
    assert (found.low, found.high) == (
        pytest.approx(paired.mean() - half, abs=0.01),
        pytest.approx(paired.mean() + half, abs=0.01),
    )
    assert found.side == 1
    assert difference([second], [first], 2000).side == -1


def test_seeds_that_disagree_widen_the_interval() -> None:
    second = [correct(0.5, seed) for seed in range(4)]
    steady = [correct(0.7, 10 + seed) for seed in range(4)]
    erratic = [correct(share, 20 + seed) for seed, share in enumerate((0.4, 0.9, 0.5, 1.0))]
    narrow, wide = difference(steady, second, 1000), difference(erratic, second, 1000)
    assert narrow.side == 1
    assert wide.side == 0
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


@pytest.mark.parametrize("n_seeds", [3, 6])
def test_intervals_of_no_difference_contain_zero_about_as_often_as_they_say(n_seeds: int) -> None:
    rng = np.random.default_rng(0)
    covered = []
    for trial in range(200):
        levels = 0.5 + 0.1 * rng.standard_normal((2, n_seeds))  # seeds differ by more than items, rows do not
        rows = [[correct(share, 1000 * trial + 10 * r + s, 200) for s, share in enumerate(levels[r])] for r in range(2)]
        covered.append(difference(rows[0], rows[1], 200).side == 0)
    assert 0.93 <= np.mean(covered) <= 0.99


def test_items_of_one_unit_are_drawn_together() -> None:
    values = torch.from_numpy(np.random.default_rng(0).random(40) < 0.5).repeat_interleave(10)
    single = above([mean_items(values)], 0.5, 1000)
    grouped = above([mean_items(values, torch.arange(400) // 10)], 0.5, 1000)
    assert grouped.high - grouped.low > 2.5 * (single.high - single.low)


def test_rows_of_other_items_are_refused() -> None:
    with pytest.raises(UserError, match="different held-out items"):
        difference([correct(0.5, 0)], [correct(0.5, 0, N + 1)], 10)
