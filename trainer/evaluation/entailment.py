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

from trainer.evaluation.analysis.order import average_precision, merge_ties, order_share, roc_auc
from trainer.models.dual_encoder import DualEncoder
from trainer.models.terms import Entails

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
