"""Order and entailment of true pairs against mismatched pairs.

For each entailment relation of a model, three results, each with a chance level of 0.5:

- order: the share of true pairs whose general point is nearer the root than the specific point
- auc: the area under the ROC curve of the model's margin (the exterior angle minus the half-aperture; MERU, eq. 10 to
  12), for true against mismatched pairs
- ap: the average precision of the same margin; mismatched pairs weigh as much as true pairs

In a product of factors, the margin is the mean over the factors, as is the loss (PHyCLIP eq. 5). The half-aperture is
the plain one: the factor eta of the training is not applied.

Shapes: n full images or captions, m boxes or phrases, k factors, d embedding width.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from trainer.models.dual_encoder import DualEncoder
from trainer.models.terms import Entails

# Order and entailment of pairs of points: how well the geometry tells the general from the specific, and true pairs
# from mismatched ones. Unlike the share of satisfied entailments, a collapse of all points gives no good value here.
#
# Scores that are not numbers count against the model.
#
# Shapes: p true pairs, m mismatched pairs.


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


DRAWS: Final = 8
"""Mismatched pairs drawn for each true pair; fewer, but at least one, if the total would exceed `MAX_MISMATCHED`."""
MAX_MISMATCHED: Final = 50_000
TIE: Final = 1e-6
"""Largest difference of equal distances and margins (radians): their rounding error in float32."""
CHANCE: Final = 0.5
"""Chance level of order, auc and ap."""


class PairScores(NamedTuple):
    """Numbers of the pairs of one relation: p true pairs and m mismatched pairs."""

    general: Tensor  # [p] distances of the general points from the root
    specific: Tensor  # [p] distances of the specific points from the root
    true: Tensor  # [p] minus the margins of true pairs
    mismatched: Tensor  # [m] minus the margins of mismatched pairs


@torch.no_grad()
def entailment_metrics(
    model: DualEncoder, lifted: dict[str, Tensor], owner: Tensor | None, seed: int = 0
) -> dict[str, float]:
    """Results by name: NAME/order, NAME/auc, NAME/ap and NAME/chance for each relation that the model learns.

    `lifted` holds the points [*k n d] of "image" and "text", those [*k m d] of "box_image" and "box_text" if there are
    boxes, and those of `DualEncoder.word_points`. `owner` [m] is the index of the image that each box belongs to.
    Relations with a part that is missing are skipped; without mismatched pairs there is no auc and no ap.
    """
    results: dict[str, float] = {}
    for entails in model.entailments():
        if {entails.general, entails.specific} <= lifted.keys() and lifted[entails.general].shape[-2]:
            found = pair_metrics(score_pairs(model, entails, lifted, owner, seed))
            results |= {f"{entails.name}/{key}": value for key, value in (found | {"chance": CHANCE}).items()}
    return results


def pair_metrics(scores: PairScores) -> dict[str, float]:
    """Order, auc and ap of the pairs of one relation."""
    results = {"order": order_share(scores.general, scores.specific, TIE)}
    if len(scores.mismatched):
        ranks = merge_ties(scores.true, scores.mismatched, TIE)
        results |= {"auc": roc_auc(*ranks), "ap": average_precision(*ranks)}
    return results


@torch.no_grad()
def score_pairs(
    model: DualEncoder, entails: Entails, lifted: dict[str, Tensor], owner: Tensor | None, seed: int
) -> PairScores:
    """Distances from the root and margins of the pairs of a relation; arguments as in `entailment_metrics`."""
    general, specific, owners = align_pairs(entails, lifted, owner)
    rows, partners = draw_mismatched(owners, seed)
    return PairScores(
        general=model.radius(general),
        specific=model.radius(specific),
        true=-mean_margin(model, general, specific),
        mismatched=-mean_margin(model, general[..., rows, :], specific[..., partners, :]),
    )


def mean_margin(model: DualEncoder, general: Tensor, specific: Tensor) -> Tensor:
    """Margins [b] of pairs of points [*k b d], mean over the factors."""
    margin = model.margin(general, specific)
    return margin if margin.ndim == 1 else margin.mean(0)


def align_pairs(entails: Entails, lifted: dict[str, Tensor], owner: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """General and specific points, pair by pair, and the index of the sample that each pair belongs to.

    If one part is a box or a phrase and the other is not, the other is repeated for each box.
    """
    general, specific = lifted[entails.general], lifted[entails.specific]
    is_box = [part.startswith("box_") for part in (entails.general, entails.specific)]
    if owner is None or not any(is_box):
        return general, specific, torch.arange(general.shape[-2], device=general.device)
    if not is_box[0]:
        general = general[..., owner, :]
    if not is_box[1]:
        specific = specific[..., owner, :]
    return general, specific, owner


def draw_mismatched(owners: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Draw mismatched pairs: indices of general points, and of specific points that belong to a different sample.

    `owners` [n] is the sample of each true pair. About `DRAWS` pairs are drawn for each true pair, fewer for a large n.
    """
    generator = torch.Generator().manual_seed(seed)
    n = len(owners)
    draws = min(DRAWS, max(1, MAX_MISMATCHED // max(n, 1)))
    rows = torch.arange(n).repeat(draws)
    partners = torch.randint(n, (n * draws,), generator=generator)
    differ = owners.cpu()[rows] != owners.cpu()[partners]
    return rows[differ].to(owners.device), partners[differ].to(owners.device)
