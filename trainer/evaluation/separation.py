"""Separation of two sets of scores: area under the ROC curve and average precision.

Shapes: p positives, n negatives.
"""

import torch
from torch import Tensor


def ranking_curve(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Number of positives and of all items with at least a score, at each distinct score from the largest down."""
    scores = torch.cat([positive, negative]).double()
    labels = torch.cat([torch.ones(len(positive)), torch.zeros(len(negative))]).double()
    order = scores.argsort(descending=True)
    scores, labels = scores[order], labels[order]
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])
    return labels.cumsum(0)[last], torch.arange(1.0, len(scores) + 1, dtype=torch.float64)[last]


def auc(positive: Tensor, negative: Tensor) -> float:
    """Probability that a positive [p] has a larger score than a negative [n]; equal scores count one half.

    NaN if one of the sets is empty.
    """
    if not len(positive) or not len(negative):
        return float("nan")
    hits, seen = ranking_curve(positive, negative)
    true = torch.cat([torch.zeros(1).double(), hits / len(positive)])
    false = torch.cat([torch.zeros(1).double(), (seen - hits) / len(negative)])
    return torch.trapezoid(true, false).item()


def average_precision(positive: Tensor, negative: Tensor) -> float:
    """Mean precision over the steps of recall, with equal scores as one step. NaN if there are no positives."""
    if not len(positive):
        return float("nan")
    hits, seen = ranking_curve(positive, negative)
    steps = hits.diff(prepend=torch.zeros(1).double()) / len(positive)
    return (steps * hits / seen).sum().item()
