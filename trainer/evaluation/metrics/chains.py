"""Hierarchical matching of images and chains of captions, from general to specific (HierarCaps).

Two rules select the captions that a model predicts for an image:

- `captions_within_radius`: HierarCaps (Alper and Averbuch-Elor 2024). For thresholds of the distance to the root, the
  caption with the best score among those that are nearer to the root.
- `captions_on_path`: HyCoCLIP, appendix H. For points on the way from the root to the best caption of the image, the
  nearest caption.

PEP (ARGENT) measures how well the entailment cones of captions separate their own images from others; the probability of
entailment is 0 beyond a right angle, which creates ties, so that it is also reported for the signed margin. HiMo@K
(HiMo-CLIP, arXiv 2511.06653) asks whether an image scores higher with each sentence that a caption adds.

Shapes: n images, t distinct captions, l levels of a chain, s steps, d embedding width.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.distances import pearson
from trainer.evaluation.metrics.entailment import average_precision, roc_auc
from trainer.evaluation.metrics.ranking import score_of_any, split
from trainer.evaluation.metrics.spaces import center_of
from trainer.evaluation.task import Embedder, TaskOptions
from trainer.models.cones import Cones
from trainer.models.config import Ranking
from trainer.models.dual_encoder import DualEncoder

STEPS: Final = 50
MAX_NUMBERS: Final = 2**24
"""Largest number of coordinates of pairs of points in memory at once."""
NEGATIVES: Final = 100
"""Number of other images' captions that PEP compares each image with."""


class ChainResult(NamedTuple):
    """Metrics of chains with chance levels, predicted captions [n s], their distances to the root [t], and scores [n t]."""

    metrics: dict[str, float]
    chance: dict[str, float]
    predicted: Tensor
    distances: Tensor
    scores: Tensor


def evaluate_chains(
    embedder: Embedder, images: Tensor, captions: Sequence[str], chains: Tensor, options: TaskOptions
) -> ChainResult:
    """Metrics of images with chains of captions [n l], indices from general to specific into t captions.

    Takes features [n d] of images before the lift. radius/... are the metrics of HierarCaps, path/... those of HyCoCLIP;
    pep/... exist for models with cones, for the first negatives with the rule "released", else for drawn ones. The root
    is the origin; for CLIP, that of the file `options.root`, or the mean of the embeddings at hand.
    """
    model, ranking = embedder.model, options.ranking
    features = embedder.texts([*captions, ""])
    texts, empty = features[:-1], features[-1]
    scores = caption_scores(model, images, texts, ranking)
    radii = (F.normalize(texts, dim=-1) - F.normalize(empty, dim=-1)).norm(dim=-1)
    center = center_of(model, [F.normalize(images, dim=-1), F.normalize(texts, dim=-1)], options.root)
    origin = torch.zeros(texts.shape[1]) if center is None else center
    distances = distances_to_root(model, texts, origin)
    predicted = captions_on_path(model, texts, scores.argmax(1), origin, ranking)
    metrics = chain_metrics("radius", captions_within_radius(scores, radii), chains, radii)
    metrics |= chain_metrics("path", predicted, chains, distances)
    chance = {"radius/tau": 0.0, "path/tau": 0.0}
    if isinstance(model, Cones):
        found, at_random = pep(model, texts, images, chains, None if options.rule == "released" else options.seed)
        metrics, chance = metrics | found, chance | at_random
    return ChainResult(metrics, chance, predicted, distances, scores)


@torch.inference_mode()
def caption_scores(model: DualEncoder, images: Tensor, texts: Tensor, ranking: Ranking) -> Tensor:
    """Scores [n t] of captions for images, from features [n d] and [t d]."""
    device = device_of(model)
    candidates = model.lift_text(texts.to(device))
    parts = [
        model.scores(model.lift_image(part.to(device)), candidates, ranking, "image").cpu() for part in images.split(64)
    ]
    return torch.cat(parts)


def chain_metrics(name: str, predicted: Tensor, chains: Tensor, distances: Tensor) -> dict[str, float]:
    """Precision, recall, tau and share of equal distances, from predictions [n s], chains [n l] and distances [t]."""
    precision, recall = precision_recall(predicted, chains)
    found = {f"{name}/{key}": value for key, value in distance_order(distances[chains]).items()}
    return {f"{name}/precision": precision, f"{name}/recall": recall} | found


def distance_order(values: Tensor) -> dict[str, float]:
    """Kendall's tau of distances [n l] to the root and their levels, and the share of neighbours at equal distances."""
    equal = (values[:, :-1] == values[:, 1:]).double().mean().item()
    return {"tau": kendall_tau(values).mean().item(), "equal_distances": equal}


def pep(
    model: Cones, texts: Tensor, images: Tensor, chains: Tensor, seed: int | None
) -> tuple[dict[str, float], dict[str, float]]:
    """PEP and its level at random: AUC and average precision of probability and margin, and the share of zeros."""
    levels = chains.shape[1]
    own = torch.stack([chains.flatten(), torch.arange(len(chains)).repeat_interleave(levels)], 1)
    others = mismatched_rows(chains[:, -1].tolist(), NEGATIVES, seed)
    if not len(others):
        return {}, {}
    (true, true_margin), (false, false_margin) = (cone_scores(model, texts, images, rows) for rows in (own, others))
    metrics = {
        "pep/auc": roc_auc(true, false),
        "pep/average_precision": average_precision(true, false, balanced=False),
        "pep/zeros": (torch.cat([true, false]) == 0).double().mean().item(),
        "pep/margin_auc": roc_auc(true_margin, false_margin),
        "pep/margin_average_precision": average_precision(true_margin, false_margin, balanced=False),
    }
    share = len(own) / (len(own) + len(others))
    return metrics, {
        "pep/auc": 0.5,
        "pep/margin_auc": 0.5,
        "pep/average_precision": share,
        "pep/margin_average_precision": share,
    }


def himo(scores: Sequence[Tensor]) -> dict[str, Tensor]:
    """HiMo@K of n images, each with the scores [K] of captions that grow, K at least 2: `pearson` and `monotone`, [n].

    Pearson's correlation of a caption's place and its score, 0 for constant scores; and True if the score rises at each
    step. The metric is the mean over the images.
    """
    return {
        "pearson": torch.stack([pearson(torch.arange(len(row)), row) for row in scores]),
        "monotone": torch.stack([(row.diff() > 0).all() for row in scores]),
    }


def captions_within_radius(scores: Tensor, radii: Tensor, steps: int = STEPS) -> Tensor:
    """Index [n s] of the best caption within each radius, from scores [n t] and distances to the root [t].

    The thresholds go from the smallest to the largest radius in equal steps.
    """
    order = radii.argsort(stable=True)
    ordered = radii[order].double()
    thresholds = ordered[0] + (ordered[-1] - ordered[0]) * torch.linspace(0, 1, steps, dtype=torch.float64)
    # Rounding may put the last threshold below the largest radius, and the first one below the smallest.
    last = torch.searchsorted(ordered, thresholds.clamp(min=ordered[0].item()), right=True) - 1
    last[-1] = len(order) - 1
    best = scores[:, order].cummax(1).indices[:, last]
    return order[best]


@torch.inference_mode()
def captions_on_path(
    model: DualEncoder, texts: Tensor, ends: Tensor, root: Tensor, ranking: Ranking, steps: int = STEPS
) -> Tensor:
    """Index [n s] of the caption nearest to each point on the ways from the root to the captions `ends` [n].

    `texts` [t d] are features before the lift; `root` [d] is the root in the same space. Points are equally spaced in
    the tangent space at the origin of a hyperbolic model: log_0 of a lifted feature v is a multiple of v, so that
    exp_0(w log_0(lift(v))) = lift(w v). For CLIP the directions are interpolated and normalized.
    """
    device = device_of(model)
    features = tangents(model, texts).to(device)
    candidates = model.lift_text(features)
    chosen, position = ends.unique(return_inverse=True)
    weights = torch.linspace(0, 1, steps, device=device)[:, None]
    points = torch.lerp(root.to(features), features[chosen.to(device)][:, None], weights).flatten(0, 1)
    score = score_of_any(model, ranking)
    parts = [score(model.lift_text(part), candidates).argmax(1) for part in points.split(split(candidates, len(texts)))]
    return torch.cat(parts).view(-1, steps).cpu()[position]


def tangents(model: DualEncoder, features: Tensor) -> Tensor:
    """Features [n d] of a hyperbolic model, unit vectors of CLIP."""
    return features if isinstance(model, Cones) else torch.nn.functional.normalize(features, dim=-1)


@torch.inference_mode()
def distances_to_root(model: DualEncoder, texts: Tensor, root: Tensor) -> Tensor:
    """Distances [t] to the root [d] of captions with features [t d]; 1 - cosine for CLIP."""
    device = device_of(model)
    points, apex = (model.lift_text(tangents(model, part).to(device)) for part in (texts, root[None]))
    return model.distance(apex, points)[0].cpu()


def precision_recall(predicted: Tensor, chains: Tensor) -> tuple[float, float]:
    """Mean precision and recall of the captions [n s] predicted for each image, given its chain [n l]; both as indices.

    Precision is the share of distinct predicted captions that are in the chain, recall the share of levels whose
    caption is predicted.
    """
    is_level = (predicted[:, :, None] == chains[:, None, :]).any(2)
    ordered, order = predicted.sort(dim=1)
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    hits = is_level.gather(1, order) & is_new
    recall = (chains[:, :, None] == predicted[:, None, :]).any(2).double().mean().item()
    return (hits.sum(1) / is_new.sum(1)).double().mean().item(), recall


def kendall_tau(values: Tensor) -> Tensor:
    """Kendall's tau [n] between values [n l] and their order in the row. Equal pairs count 0, as do pairs with NaN."""
    pairs = list(combinations(range(values.shape[1]), 2))
    signs = [torch.nan_to_num((values[:, j] - values[:, i]).sign()) for i, j in pairs]
    return torch.stack(signs).double().mean(0)


def entailment_probability(angles: Tensor) -> Tensor:
    """Probability max(0, 1 - 2 angle / pi) of entailment (PEP, ARGENT), from exterior angles of any shape."""
    return (1 - 2 * angles / torch.pi).clamp(min=0)


@torch.inference_mode()
def cone_scores(model: Cones, general: Tensor, specific: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of entailment and margin (aperture - angle), each [m], of m pairs `rows` [m 2] of features.

    `general` are features of texts [t d], `specific` of images [n d]. In a product of factors both are means.
    """
    device = device_of(model)
    probabilities: list[Tensor] = []
    margins: list[Tensor] = []
    for part in rows.split(max(1, MAX_NUMBERS // general.shape[1])):
        apexes = model.lift_text(general[part[:, 0]].to(device))
        angle, aperture = model.cone(apexes, model.lift_image(specific[part[:, 1]].to(device)))
        for found, values in ((probabilities, entailment_probability(angle)), (margins, aperture - angle)):
            found.append((values if values.ndim == 1 else values.mean(0)).cpu())
    return torch.cat(probabilities), torch.cat(margins)


def mismatched_rows(chain_ends: Sequence[int], per_image: int, seed: int | None) -> Tensor:
    """Pairs [m 2] of a caption of another image and an image: `per_image` for each of n images.

    `chain_ends` are the finest captions of the images. With a seed they are drawn without repetition; without one, the
    first ones in order are taken. A caption that equals the image's own is excluded.
    """
    ends = torch.tensor(chain_ends)
    generator = torch.Generator().manual_seed(seed or 0)
    pairs = []
    for image in range(len(ends)):
        order = torch.arange(len(ends)) if seed is None else torch.randperm(len(ends), generator=generator)
        others = ends[order]
        others = others[others != ends[image]][:per_image]
        pairs.append(torch.stack([others, torch.full_like(others, image)], 1))
    return torch.cat(pairs)
