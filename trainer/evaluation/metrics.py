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


def recalls(scores: Tensor, relevant: Tensor, ks: tuple[int, ...]) -> dict[int, float]:
    """Share of queries with a relevant candidate among the first k, for each k. `scores` and `relevant` are [q n].

    Equal scores keep the order of the candidates: constant scores give the chance level. Queries without a relevant
    candidate are ignored.
    """
    order = scores.argsort(dim=1, descending=True, stable=True)
    found = relevant.gather(1, order)[relevant.any(1)]
    return {k: found[:, :k].any(1).float().mean().item() for k in ks}


def chance_recalls(relevant: Tensor, ks: tuple[int, ...]) -> dict[int, float]:
    """Expected recall of a random ranking: 1 - C(n - r, k) / C(n, k) with r relevant of n, mean over queries."""
    n = relevant.shape[1]
    counts = relevant.sum(1)[relevant.any(1)].double()

    def log_choose(total: Tensor, k: int) -> Tensor:
        return torch.lgamma(total + 1) - torch.lgamma(total - k + 1) - torch.lgamma(torch.tensor(k + 1.0).double())

    result = {}
    for k in ks:
        irrelevant = n - counts
        missed = (log_choose(irrelevant, k) - log_choose(torch.tensor(float(n)).double(), k)).exp()
        result[k] = (1 - torch.where(irrelevant < k, 0.0, missed)).mean().item() if k < n else 1.0
    return result
