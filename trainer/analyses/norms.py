"""Distances of texts, images, phrases and boxes from the root (MERU, figure 4; HyCoCLIP, figure 5; PHyCLIP, figure 3).

The quantity is the geodesic distance to the origin, for PHyCLIP summed over the factors; for CLIP, it is 1 - cosine to
the mean direction of all points. HyCoCLIP plots |x|, and MERU any monotone function of the distance: the order of the
groups is the same. Figure 3a of PHyCLIP shows one factor, which it does not name: here that in which the distances of
texts differ most. The papers use training batches with random crops; here whole images of held-out shards are used.

Shapes: n points of a group, k factors.
"""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from trainer.analyses.shard_points import HELD_OUT, embed_shards
from trainer.evaluation.metrics.entailment import roc_auc
from trainer.evaluation.metrics.spaces import NAMES, Lorentz, over_factors, quantity, root_rule, space_of_points
from trainer.evaluation.plots import draw_factor_medians, draw_histograms
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, Figure, TaskOptions, TaskResult
from trainer.models.phyclip import PHyCLIP

MAX_SAMPLES: Final = 129_024
"""Samples of HyCoCLIP's histogram: 168 batches of 768."""
ORDERS: Final = {
    "text_below_image": ("text", "image"),
    "phrase_below_box": ("box_text", "box_image"),
    "box_below_image": ("box_image", "image"),
    "phrase_below_text": ("box_text", "text"),
}
"""Pairs of groups of which the first is expected nearer the root."""
N_BINS: Final = 100


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Compute the distances of the groups from the root. Raises MissingFilesError without held-out shards."""
    points = embed_shards(embedder, root, options.max_examples or MAX_SAMPLES)
    model = embedder.model
    lifted = points.lifted(model)
    space = space_of_points(model, lifted, options.root)
    by_factor = {part: space.radius(group).cpu() for part, group in lifted.items()}  # [n], or [k n]
    totals = {part: over_factors(radii) for part, radii in by_factor.items()}
    label = quantity(model)
    metrics = {f"{part}/median_distance": radii.median().item() for part, radii in totals.items()}
    orders = {name: pair for name, pair in ORDERS.items() if set(pair) <= totals.keys()}
    metrics |= {name: roc_auc(totals[far], totals[near]) for name, (near, far) in orders.items()}
    details: dict[str, object] = {"histograms": {part: histogram(radii) for part, radii in totals.items()}}
    groups = {NAMES[part]: radii.numpy() for part, radii in totals.items()}
    figures = [Figure("histogram", "Distances from the root", draw_histograms, groups, label)]
    if isinstance(model, PHyCLIP) and isinstance(space, Lorentz):
        medians = {part: radii.median(-1).values for part, radii in by_factor.items()}
        details["median_distance_by_factor"] = {part: values.tolist() for part, values in medians.items()}
        named = {NAMES[part]: values.numpy() for part, values in medians.items()}
        figures.append(Figure("factors", "Median distance from the origin by factor", draw_factor_medians, named))
        factor = int(by_factor["text"].std(-1).argmax())
        details["factor"] = factor
        within = {NAMES[part]: radii[factor].numpy() for part, radii in by_factor.items()}
        title, axis = "Distances in the factor with the widest texts", f"distance to the origin of factor {factor}"
        figures.append(Figure("one_factor", title, draw_histograms, within, axis))
    return TaskResult(
        metrics=metrics,
        chance=dict.fromkeys(orders, 0.5),
        rules={
            "quantity": label,
            "root": root_rule(model, "all points", options.root),
            "images": "whole images and boxes without augmentation; the papers use random crops",
            "A_below_B": "probability that a point of A is nearer the root than a point of B",
        },
        n_used=len(points.captions),
        skipped=points.skipped,
        checksums=checksums(root, root / HELD_OUT),
        details=details,
        figures=figures,
    )


def histogram(radii: Tensor) -> dict[str, list[float]]:
    """Edges of `N_BINS` bins of equal width, and the share of the distances [n] in each."""
    low, high = radii.min().item(), radii.max().item()
    counts, edges = torch.histogram(radii.double(), N_BINS, range=(low, high if high > low else low + 1))
    return {"edges": edges.tolist(), "shares": (counts / len(radii)).tolist()}
