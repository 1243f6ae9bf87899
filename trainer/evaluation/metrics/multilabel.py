"""Average precision of images that show several classes. Shapes: n images, c classes."""

import torch
from torch import Tensor

from trainer.evaluation.metrics.entailment import average_precision

IGNORED = -1
"""Label of a class that an image may show, such as a difficult object of VOC: the image does not count for it."""


def class_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """Average precision [c] of ranking all images by their score for a class, from scores and labels [n c].

    Labels are 1, 0 or `IGNORED`. Equal scores are one step of the curve. NaN for a class that no image shows, or all do.
    """
    columns = zip(scores.unbind(1), labels.unbind(1), strict=True)
    found = [average_precision(column[own == 1], column[own == 0], balanced=False) for column, own in columns]
    return torch.tensor(found, dtype=torch.float64)


def prevalence(labels: Tensor) -> Tensor:
    """Share [c] of the counted images that show a class: about the average precision at random; NaN as for precisions."""
    shown, absent = (labels == 1).sum(0).double(), (labels == 0).sum(0).double()
    return torch.where((shown > 0) & (absent > 0), shown / (shown + absent), torch.nan)
