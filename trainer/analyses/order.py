"""Order and entailment of texts, images, phrases and boxes.

For each relation, the share of pairs whose general point is nearer the root, and the area under the ROC curve and the
average precision of (exterior angle - half-aperture) and of PEP for true against mismatched pairs. PEP (ARGENT) is the
probability of entailment max(0, 1 - 2 phi / pi) of the exterior angle phi; angles above pi / 2 are ties. All models are
compared in the four relations of HyCoCLIP (eq. 9 to 11), whether they were trained on them or not. CLIP has no cones:
it has the order alone, with the mean direction of all points, or the option `root`, as the root.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from trainer.analyses.shard_points import HELD_OUT, ShardPoints, embed_shards
from trainer.evaluation.metrics import RELATION_NAMES
from trainer.evaluation.metrics.chains import entailment_probability
from trainer.evaluation.metrics.entailment import (
    CHANCE,
    TIE,
    PairScores,
    align_pairs,
    draw_mismatched,
    merge_ties,
    roc_auc,
    roc_curve,
    score_pairs,
)
from trainer.evaluation.metrics.items import Items, mean_items, pair_items
from trainer.evaluation.metrics.spaces import root_rule, space_of_points
from trainer.evaluation.plots import draw_histograms, draw_roc
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, Figure, TaskOptions, TaskResult
from trainer.models.cones import Cones
from trainer.models.dual_encoder import DualEncoder
from trainer.models.poinclip import PoinCLIP
from trainer.models.terms import Entails

# Order and entailment of the single pairs of a relation, for the metrics of the task `order` and their intervals.


def order_items(general: Tensor, specific: Tensor, owners: Tensor) -> Items:
    """True [p] for each pair whose general point is nearer the root, from distances to the root [p]."""
    return mean_items(specific - general > TIE, owners)


@torch.no_grad()
def relation_items(
    model: Cones,
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


def probability(model: Cones, general: Tensor, specific: Tensor) -> Tensor:
    """Probabilities of entailment [b] of pairs of points [*k b d]."""
    found = entailment_probability(model.cone(general, specific)[0])
    return found if found.ndim == 1 else found.mean(0)


RELATIONS: Final = (
    Entails(name="text_image", general="text", specific="image"),
    Entails(name="box_text_image", general="box_text", specific="box_image"),
    Entails(name="cross_image", general="box_image", specific="image"),
    Entails(name="cross_text", general="box_text", specific="text"),
)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the relations whose parts the shards have. Raises MissingFilesError without held-out shards."""
    return measure(embedder.model, embed_shards(embedder, root, options.max_examples), root, options)


def measure(model: DualEncoder, points: ShardPoints, root: Path, options: TaskOptions) -> TaskResult:
    """The result of the task, from features of the held-out shards below `root`."""
    lifted = points.lifted(model)
    owner = points.owner.to(lifted["text"].device) if "box_text" in lifted else None
    relations = [entails for entails in RELATIONS if {entails.general, entails.specific} <= lifted.keys()]
    items: dict[str, Items] = {}
    scores: dict[str, PairScores] = {}
    space = space_of_points(model, lifted, options.root)
    for entails in relations:
        if isinstance(model, Cones):
            scores[entails.name] = score_pairs(model, entails, lifted, owner, options.seed)
            found = relation_items(model, entails, lifted, owner, options.seed, scores[entails.name])
        else:
            general, specific, owners = align_pairs(entails, lifted, owner)
            found = {"order": order_items(space.radius(general), space.radius(specific), owners)}
        items |= {f"{entails.name}/{key}": values for key, values in found.items()}
    metrics = {name: values.metric() for name, values in items.items()}
    rules = {
        "root": root_rule(model, "all points", options.root),
        "aperture": "plain, without the factor eta of the training",
        "mismatched": "pairs of other samples; together they weigh as much as the true pairs in ap",
        "ties": "count against the model in order",
        "pep": "max(0, 1 - 2 angle / pi)",
    }
    if isinstance(model, PoinCLIP):
        rules["apex"] = "the point of lower entropy, as in the training"
    return TaskResult(
        metrics=metrics,
        chance=dict.fromkeys(metrics, CHANCE),
        rules=rules,
        n_used=len(points.captions),
        skipped=points.skipped,
        checksums=checksums(root, root / HELD_OUT),
        details={
            "number_of_pairs": {
                name: {"true": len(pairs.true), "mismatched": len(pairs.mismatched)} for name, pairs in scores.items()
            }
        },
        figures=figures_of({RELATION_NAMES[name]: pairs for name, pairs in scores.items() if len(pairs.mismatched)}),
        items=items,
    )


def roc_figure(title: str, scores: Mapping[str, PairScores]) -> Figure:
    """The ROC curves of true against mismatched pairs, by the name of the relation."""
    curves, aucs = {}, {}
    for name, pairs in scores.items():
        false_share, true_share = roc_curve(pairs.true, pairs.mismatched)
        curves[name] = (false_share.numpy(), true_share.numpy())
        aucs[name] = roc_auc(pairs.true, pairs.mismatched)
    return Figure("roc", title, draw_roc, curves, aucs)


def figures_of(scores: dict[str, PairScores]) -> list[Figure]:
    """ROC curves of all relations, and a histogram of the margins of each."""
    if not scores:
        return []
    figures = [roc_figure("True against mismatched pairs", scores)]
    label = "exterior angle - half-aperture, degrees (inside the cone: below 0)"
    for name, pairs in scores.items():
        groups = {
            kind: -torch.rad2deg(values.double()).cpu().numpy()
            for kind, values in (("true pairs", pairs.true), ("mismatched pairs", pairs.mismatched))
        }
        short, title = name.replace(" > ", "_"), f"Margins of entailment, {name}"
        figures.append(Figure(f"margins_{short}", title, draw_histograms, groups, f"{name}: {label}"))
    return figures
