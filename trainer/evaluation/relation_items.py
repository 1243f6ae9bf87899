"""Order and entailment of the single pairs of a relation, for the metrics of the task `order` and their intervals."""

import torch
from torch import Tensor

from trainer.evaluation.analysis.order import merge_ties
from trainer.evaluation.chains import entailment_probability
from trainer.evaluation.entailment import TIE, PairScores, align_pairs, draw_mismatched
from trainer.evaluation.items import Items, mean_items, pair_items
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.terms import Entails


def order_items(general: Tensor, specific: Tensor, owners: Tensor) -> Items:
    """True [p] for each pair whose general point is nearer the root, from distances to the root [p]."""
    return mean_items(specific - general > TIE, owners)


@torch.no_grad()
def relation_items(
    model: Hyperbolic,
    entails: Entails,
    lifted: dict[str, Tensor],
    owner: Tensor | None,
    seed: int,
    scores: PairScores,
) -> dict[str, Items]:
    """The items of `order`, `auc` and `ap` by margin, and `pep_auc` and `pep_ap` by the probability of entailment.

    `scores` are those of `score_pairs` with the same arguments. The sample of the general point is the unit of a pair.
    In a product of factors, the probability is the mean over the factors.
    """
    general, specific, owners = align_pairs(entails, lifted, owner)
    rows, partners = draw_mismatched(owners, seed)
    found = {"order": order_items(scores.general, scores.specific, owners)}
    if not len(rows):
        return found
    units = owners, owners[rows]
    by_margin = merge_ties(scores.true, scores.mismatched, TIE)
    by_probability = merge_ties(
        probability(model, general, specific),
        probability(model, general[..., rows, :], specific[..., partners, :]),
        TIE,
    )
    for prefix, ranks in (("", by_margin), ("pep_", by_probability)):
        found[f"{prefix}auc"] = pair_items(*ranks, units, "auc")
        found[f"{prefix}ap"] = pair_items(*ranks, units, "ap")
    return found


def probability(model: Hyperbolic, general: Tensor, specific: Tensor) -> Tensor:
    """Probabilities of entailment [b] of pairs of points [*k b d]."""
    found = entailment_probability(model.cone(general, specific)[0])
    return found if found.ndim == 1 else found.mean(0)
