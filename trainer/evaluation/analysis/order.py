"""Order and entailment of pairs of points: how well the geometry tells the general from the specific, and true pairs
from mismatched ones. Unlike the share of satisfied entailments, a collapse of all points gives no good value here.

Scores that are not numbers count against the model.

Shapes: p true pairs, m mismatched pairs.
"""

import torch
from torch import Tensor


def order_share(general: Tensor, specific: Tensor, tolerance: float = 0.0) -> float:
    """Share of pairs whose general point is nearer the root, from distances to the root [p].

    Pairs whose distances differ by at most `tolerance` are ties, which count against the model.
    """
    return (specific - general > tolerance).double().mean().item()


def merge_ties(true: Tensor, mismatched: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Ranks of scores; scores whose neighbours in order differ by at most `tolerance` have equal ranks.

    The rounding errors of equal pairs depend on their place in a batch. They must not rank them.
    """
    scores, order = torch.cat(without_nans(true, mismatched)).sort()
    starts = torch.diff(scores, prepend=scores[:1]) > tolerance
    ranks = torch.empty_like(scores)
    ranks[order] = starts.cumsum(0).double()
    return ranks[: len(true)], ranks[len(true) :]


def roc_auc(true: Tensor, mismatched: Tensor) -> float:
    """Probability that a true pair [p] scores higher than a mismatched pair [m]; ties count half. Chance is 0.5.

    The Mann-Whitney statistic U / (p m), the area under the ROC curve. NaN without pairs of one kind.
    """
    if not len(true) or not len(mismatched):
        return float("nan")
    true, mismatched = without_nans(true, mismatched)
    ordered = mismatched.sort().values
    below = torch.searchsorted(ordered, true, right=False)
    not_above = torch.searchsorted(ordered, true, right=True)
    return ((below + not_above).double().mean() / (2 * len(mismatched))).item()


def average_precision(true: Tensor, mismatched: Tensor, balanced: bool = True) -> float:
    """Average precision of the scores of true pairs [p] against those of mismatched pairs [m].

        sum_i (R_i - R_(i-1)) P_i      over the distinct scores, from high to low

    `balanced` gives all mismatched pairs together the weight of all true pairs: the chance level is 0.5 for any number
    of mismatched pairs. Otherwise it is p / (p + m). NaN without pairs of one kind.
    """
    if not len(true) or not len(mismatched):
        return float("nan")
    scores = torch.cat(without_nans(true, mismatched))
    is_true = torch.zeros_like(scores)
    is_true[: len(true)] = 1
    weight = len(true) / len(mismatched) if balanced else 1.0
    scores, order = scores.sort(descending=True)
    is_true = is_true[order]
    last = torch.cat([scores[1:] != scores[:-1], scores.new_ones(1, dtype=torch.bool)])  # last of equal scores
    n_true, n_other = is_true.cumsum(0)[last], weight * (1 - is_true).cumsum(0)[last]
    gained = torch.diff(n_true, prepend=n_true.new_zeros(1))
    return (gained * (n_true / (n_true + n_other))).sum().item() / len(true)


def roc_curve(true: Tensor, mismatched: Tensor, n_points: int = 200) -> tuple[Tensor, Tensor]:
    """Shares of mismatched and of true pairs [n_points] that score at least a threshold, from (0, 0) to (1, 1)."""
    kinds = without_nans(true, mismatched)[::-1]
    scores = torch.cat(kinds).sort(descending=True).values
    places = torch.linspace(0, len(scores) - 1, n_points - 1).round().long()
    thresholds = scores[places]
    shares = [
        1 - torch.searchsorted(kind.sort().values, thresholds, right=False).double() / len(kind) for kind in kinds
    ]
    zero = torch.zeros(1, dtype=torch.float64)
    return torch.cat([zero, shares[0].cpu()]), torch.cat([zero, shares[1].cpu()])


def without_nans(true: Tensor, mismatched: Tensor) -> tuple[Tensor, Tensor]:
    """Scores as float64, with the worst value in place of NaN: -inf for true pairs, inf for mismatched ones."""
    inf = float("inf")
    return (
        torch.where(true.isnan(), -inf, true.double()),
        torch.where(mismatched.isnan(), inf, mismatched.double()),
    )
