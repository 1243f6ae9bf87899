"""Order, ROC and precision of scores, against closed forms and scikit-learn."""

import math

import pytest
import torch
from torch import tensor

from trainer.evaluation.metrics.entailment import average_precision, merge_ties, order_share, roc_auc, roc_curve


def test_a_tie_of_distances_to_the_root_is_no_order() -> None:
    assert order_share(tensor([1.0, 2.0, 3.0]), tensor([2.0, 2.0, 1.0])) == pytest.approx(1 / 3)


def test_scores_within_the_tolerance_are_ties() -> None:
    true, mismatched = tensor([0.1 + 1e-7, 3.0, 0.1]), tensor([0.1 - 1e-7, 5.0, math.nan])
    assert [ranks.tolist() for ranks in merge_ties(true, mismatched, 1e-6)] == [[0, 1, 0], [0, 2, 3]]
    assert order_share(tensor([0.1]), tensor([0.1 + 1e-7]), 1e-6) == 0.0


def test_perfect_constant_and_reversed_scores() -> None:
    low, high = torch.linspace(0, 1, 7), torch.linspace(2, 3, 5)
    assert (roc_auc(high, low), average_precision(high, low)) == (1.0, 1.0)
    assert roc_auc(low, high) == 0.0
    constant = torch.zeros(5), torch.zeros(40)
    assert (roc_auc(*constant), average_precision(*constant)) == (0.5, 0.5)
    assert average_precision(*constant, balanced=False) == pytest.approx(5 / 45)


def test_equal_scores_are_one_step_of_the_recall() -> None:
    # Pairs: 2 > 1, 2 = 2, 1 = 1, 1 < 2; precision 1/2 at recall 1/2, then 2/4.
    true, mismatched = tensor([2.0, 1.0]), tensor([1.0, 2.0])
    assert (roc_auc(true, mismatched), average_precision(true, mismatched, balanced=False)) == (0.5, 0.5)
    assert average_precision(torch.ones(1), torch.ones(9), balanced=False) == pytest.approx(0.1)


@pytest.mark.parametrize(("balanced", "chance"), [(True, 0.5), (False, 4 / 104)])
def test_random_scores_have_the_chance_level(balanced: bool, chance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    true, mismatched = torch.rand(4000, generator=generator), torch.rand(100_000, generator=generator)
    assert roc_auc(true, mismatched) == pytest.approx(0.5, abs=0.02)
    assert average_precision(true, mismatched, balanced) == pytest.approx(chance, abs=0.02 if balanced else 0.003)


def test_closed_form_of_four_scores() -> None:
    true, mismatched = tensor([3.0, 1.0]), tensor([2.0, 0.0])  # from high to low: true, other, true, other
    assert roc_auc(true, mismatched) == 0.75
    assert average_precision(true, mismatched) == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("balanced", [False, True])
def test_results_with_many_ties_equal_those_of_scikit_learn(balanced: bool) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    true = torch.randint(2, 9, (30,), generator=generator).float()
    mismatched = torch.randint(0, 7, (110,), generator=generator).float()
    labels, scores = [1] * 30 + [0] * 110, torch.cat([true, mismatched]).numpy()
    weights = [1.0] * 30 + [30 / 110 if balanced else 1.0] * 110
    expected = sklearn.average_precision_score(labels, scores, sample_weight=weights)
    assert average_precision(true, mismatched, balanced) == pytest.approx(expected, abs=1e-12)
    assert roc_auc(true, mismatched) == pytest.approx(sklearn.roc_auc_score(labels, scores), abs=1e-12)


def test_scores_that_are_not_numbers_count_against_the_model() -> None:
    nan = math.nan
    assert roc_auc(tensor([nan, 1.0]), tensor([0.0, 0.0])) == 0.5
    assert roc_auc(tensor([1.0, 1.0]), tensor([0.0, nan])) == 0.5
    assert average_precision(tensor([1.0]), tensor([nan])) == 0.5


def test_without_mismatched_pairs_there_is_no_ranking() -> None:
    assert math.isnan(roc_auc(tensor([1.0]), tensor([])))
    assert math.isnan(average_precision(tensor([1.0]), tensor([])))


def test_the_area_under_the_curve_is_the_auc() -> None:
    generator = torch.Generator().manual_seed(0)
    true, mismatched = torch.randn(300, generator=generator) + 1, torch.randn(700, generator=generator)
    false_share, true_share = roc_curve(true, mismatched, 1001)
    assert (false_share[0], true_share[0], false_share[-1], true_share[-1]) == (0, 0, 1, 1)
    assert torch.trapezoid(true_share, false_share).item() == pytest.approx(roc_auc(true, mismatched), abs=1e-3)
