"""Accuracy on labels written by hand."""

import pytest
import torch

from trainer.evaluation.metrics.ranking import macro_accuracy


def test_macro_accuracy_is_the_mean_recall_of_classes_that_occur() -> None:
    target = torch.tensor([0, 0, 0, 0, 1, 1])
    predicted = torch.tensor([0, 0, 0, 2, 1, 0])
    # Recalls 3/4 and 1/2; class 2 is predicted but never the target, and class 3 does not occur.
    assert macro_accuracy(predicted, target, 4) == pytest.approx((3 / 4 + 1 / 2 + 0) / 3)
