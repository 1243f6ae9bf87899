"""Evaluation metrics as functions of scores and labels.

Shapes: q queries, n candidates, c classes.
"""

import torch
from torch import Tensor


def macro_accuracy(predicted: Tensor, target: Tensor, n_classes: int) -> float:
    """Mean recall of the classes that occur as target or prediction, as torchmetrics' `MulticlassAccuracy` computes it.

    A class that is predicted but never the target counts with a recall of 0.
    """
    hits = torch.bincount(target[predicted == target], minlength=n_classes)
    targets = torch.bincount(target, minlength=n_classes)
    occurs = (targets + torch.bincount(predicted, minlength=n_classes)) > 0
    return (hits[occurs] / targets[occurs].clamp(min=1)).mean().item()


def confusion(predicted: Tensor, target: Tensor, n_classes: int) -> Tensor:
    """Numbers of images [c c] by true class (row) and predicted class (column)."""
    return torch.bincount(target * n_classes + predicted, minlength=n_classes**2).view(n_classes, n_classes)
