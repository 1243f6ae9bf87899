"""Hierarchical matching of images and chains of captions, from general to specific (HierarCaps).

Two rules select the captions that a model predicts for an image:

- `captions_within_radius`: HierarCaps (Alper and Averbuch-Elor 2024). For thresholds of the distance to the root, the
  caption with the best score among those that are nearer to the root.
- `captions_on_path`: HyCoCLIP, appendix H. For points on the way from the root to the best caption of the image, the
  nearest caption.

Shapes: n images, t distinct captions, l levels of a chain, s steps, d embedding width.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import torch
from torch import Tensor

from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.ranking import score_of_any, split
from trainer.models.cones import Cones
from trainer.models.config import Ranking
from trainer.models.dual_encoder import DualEncoder

STEPS: Final = 50
MAX_NUMBERS: Final = 2**24
"""Largest number of coordinates of pairs of points in memory at once."""


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
    similarity = model.similarity(apex, points)[0].cpu()
    return -similarity if isinstance(model, Cones) else 1 - similarity


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
