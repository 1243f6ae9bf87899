"""Area under the ROC curve and average precision on small sets of scores."""

import math

import pytest
import torch

from trainer.evaluation.separation import auc, average_precision


def test_perfect_and_reversed_scores() -> None:
    high, low = torch.tensor([3.0, 2.0]), torch.tensor([1.0, 0.0, -1.0])
    assert (auc(high, low), average_precision(high, low)) == (1, 1)
    assert auc(low, high) == 0


def test_equal_scores_count_one_half_and_are_one_step() -> None:
    ones = torch.ones(10)
    assert auc(ones[:4], ones) == 0.5
    assert average_precision(ones[:1], ones[:9]) == pytest.approx(0.1)
    # Pairs: 2 > 1, 2 = 2, 1 = 1, 1 < 2; precision 1/2 at recall 1/2, then 2/4.
    positive, negative = torch.tensor([2.0, 1.0]), torch.tensor([1.0, 2.0])
    assert auc(positive, negative) == 0.5
    assert average_precision(positive, negative) == pytest.approx(1 / 2)


def test_values_agree_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(0)
    positive, negative = (torch.randn(n).mul(4).round().div(4) + shift for n, shift in ((200, 0.5), (1500, 0.0)))
    labels = [1] * 200 + [0] * 1500
    scores = torch.cat([positive, negative]).numpy()
    assert auc(positive, negative) == pytest.approx(metrics.roc_auc_score(labels, scores))
    assert average_precision(positive, negative) == pytest.approx(metrics.average_precision_score(labels, scores))


def test_random_scores_have_an_auc_of_one_half() -> None:
    torch.manual_seed(0)
    assert auc(torch.rand(4000), torch.rand(100_000)) == pytest.approx(0.5, abs=0.02)
    assert average_precision(torch.rand(4000), torch.rand(100_000)) == pytest.approx(4 / 104, abs=0.003)


def test_empty_sets_have_no_value() -> None:
    empty, some = torch.zeros(0), torch.ones(2)
    assert math.isnan(auc(empty, some))
    assert math.isnan(auc(some, empty))
    assert math.isnan(average_precision(empty, some))
