"""Logistic regression and the search of C, on synthetic features and against scikit-learn."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.evaluation.tasks.linear_probe import GRID, Classifier, fit, search


def clusters(n: int, n_classes: int, width: int = 12, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gaussian clusters around fixed centers."""
    centers = torch.randn(n_classes, width, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % n_classes
    return centers[labels] + noise * torch.randn(n, width, generator=generator), labels


def test_one_feature_with_two_values_has_the_closed_form() -> None:
    """Two classes at x = 1 and x = -1: w minimizes log(1 + exp(-w)) + w^2 / (2 C n), so that w = C n s(-w)."""
    features, labels = torch.tensor([[1.0], [-1.0]]).double(), torch.tensor([1, 0])
    classifier = fit(features, labels, 2, 0.5)
    weight = classifier.weight.item()
    assert weight == pytest.approx(0.5 * 2 * torch.sigmoid(torch.tensor(-weight)).item(), abs=1e-3)
    assert classifier.bias.item() == pytest.approx(0, abs=1e-4)


def test_strong_regularization_leaves_the_prior_in_the_bias() -> None:
    features, labels = torch.randn(100, 3), torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    classifier = fit(features, labels, 3, 1e-9)
    assert classifier.weight.abs().max() < 1e-4
    assert classifier.bias.softmax(0).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=1e-3)


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("c", [1e-6, 1e-3, 1.0, 100.0])
def test_classifiers_agree_with_scikit_learn(n_classes: int, c: float) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = clusters(300, n_classes, noise=2.0)
    test, _ = clusters(500, n_classes, noise=2.0, seed=1)
    theirs = linear_model.LogisticRegression(C=c, max_iter=1000, random_state=0).fit(features.numpy(), labels.numpy())
    ours = fit(features, labels, n_classes, c)
    torch.testing.assert_close(ours.weight, torch.from_numpy(theirs.coef_).float(), rtol=0.03, atol=5e-3)
    agree = ours.predict(test).numpy() == theirs.predict(test.numpy())
    assert agree.mean() > 0.99


def test_search_agrees_with_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")

    def fit_sklearn(features: Tensor, labels: Tensor, n_classes: int, c: float) -> Classifier:
        found = linear_model.LogisticRegression(C=c, max_iter=1000, random_state=0).fit(features, labels)
        return Classifier(torch.from_numpy(found.coef_).float(), torch.from_numpy(found.intercept_).float())

    train, val = clusters(120, 3, noise=1.5), clusters(90, 3, noise=1.5, seed=1)
    ours, theirs = search(train, val, 3), search(train, val, 3, fit_sklearn)
    assert max(ours[1].values()) == pytest.approx(max(theirs[1].values()), abs=0.03)


def scripted(accuracy: Any) -> tuple[list[float], Any]:
    """A fit that records C and whose accuracy on two classes is `accuracy(C)`."""
    tried: list[float] = []

    def fit_scripted(features: Tensor, labels: Tensor, n_classes: int, c: float) -> Classifier:
        tried.append(c)
        # Features are 0 to 999 for both classes, and the threshold decides how many of the second one are right.
        return Classifier(torch.ones(1, 1), torch.tensor([accuracy(c) * 1000.0 - 999.5]))

    return tried, fit_scripted


def scripted_data() -> tuple[Tensor, Tensor]:
    """Class 0 at -10^6, always right, and class 1 at 0 to 999, right above the threshold."""
    values = torch.cat([torch.full((1000,), -1e6), torch.arange(1000.0)])[:, None]
    return values, torch.arange(2).repeat_interleave(1000)


def test_ties_keep_the_smallest_c_of_the_grid() -> None:
    tried, fit_constant = scripted(lambda c: 0.5)
    best, found = search(scripted_data(), scripted_data(), 2, fit_constant)
    assert best == 1e-6
    assert tried[:7] == list(GRID)
    steps = [10, 10**0.5, 10**0.25, 10**0.125]
    expected = [1e-6 * f for step in steps for f in (1 / step, step)]
    assert tried[7:] == pytest.approx(expected)
    assert len(found) == 15


def test_best_c_may_move_between_the_two_tests_of_a_refinement() -> None:
    # The optimum is at 10^-0.7. From 1, the first test 0.1 is better, so that the second test is 0.1 * 10 = 1.
    tried, fit_peak = scripted(lambda c: 1 - abs(math.log10(c) + 0.7) / 10)
    best, _ = search(scripted_data(), scripted_data(), 2, fit_peak)
    assert tried[:7] == list(GRID)
    assert tried[7] == pytest.approx(0.1)
    # 0.1 * 10 was tried before; then 0.1 / sqrt(10) and 0.1 * sqrt(10), the new best.
    assert tried[8:10] == pytest.approx([0.1 / 10**0.5, 0.1 * 10**0.5])
    assert math.log10(best) == pytest.approx(-0.7, abs=0.13)


def test_separable_clusters_are_learned_and_shuffled_labels_are_not() -> None:
    train, val = clusters(200, 4, noise=0.2), clusters(200, 4, noise=0.2, seed=1)
    assert max(search(train, val, 4)[1].values()) == 1
    shuffled = train[1][torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    assert max(search((train[0], shuffled), val, 4)[1].values()) < 0.6


def test_result_does_not_depend_on_the_order_of_examples() -> None:
    features, labels = clusters(100, 3)
    order = torch.randperm(100)
    ours, again = fit(features, labels, 3, 1.0), fit(features[order], labels[order], 3, 1.0)
    torch.testing.assert_close(ours.weight, again.weight, rtol=1e-2, atol=1e-3)
