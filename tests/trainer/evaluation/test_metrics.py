"""Accuracy and recall on labels and scores written by hand."""

import pytest
import torch

from trainer.evaluation.metrics import chance_recalls, macro_accuracy, recalls


def test_macro_accuracy_is_the_mean_recall_of_classes_that_occur() -> None:
    target = torch.tensor([0, 0, 0, 0, 1, 1])
    predicted = torch.tensor([0, 0, 0, 2, 1, 0])
    # Recalls 3/4 and 1/2; class 2 is predicted but never the target, and class 3 does not occur.
    assert macro_accuracy(predicted, target, 4) == pytest.approx((3 / 4 + 1 / 2 + 0) / 3)


def test_recall_counts_queries_with_any_relevant_candidate_among_the_first() -> None:
    scores = torch.tensor([[0.9, 0.5, 0.1], [0.9, 0.5, 0.1]])
    relevant = torch.tensor([[False, True, True], [True, False, False]])
    assert recalls(scores, relevant, (1, 2, 3)) == {1: 0.5, 2: 1.0, 3: 1.0}


def test_equal_scores_give_the_chance_level() -> None:
    relevant = torch.eye(20, dtype=torch.bool)
    assert recalls(torch.zeros(20, 20), relevant, (1, 5)) == pytest.approx({1: 1 / 20, 5: 5 / 20})


def test_queries_without_a_relevant_candidate_are_ignored() -> None:
    relevant = torch.tensor([[True, False], [False, False]])
    assert recalls(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), relevant, (1,)) == {1: 1.0}


def test_chance_recall_agrees_with_random_rankings() -> None:
    torch.manual_seed(0)
    relevant = torch.zeros(1, 12, dtype=torch.bool)
    relevant[0, :3] = True
    drawn = recalls(torch.rand(20_000, 12), relevant.expand(20_000, 12), (1, 4))
    assert chance_recalls(relevant, (1, 4, 10, 12)) == pytest.approx(drawn | {10: 1.0, 12: 1.0}, abs=0.01)
