"""Factors of PHyCLIP: norms of concepts and their compositions, and retrieval by the factor-wise maximum.

A concept has a peak: the factor with the largest distance from the origin. A composition contains a concept if its own
distance is among the largest in that factor (PHyCLIP, figure 4a). X_max takes each factor from the concept with the
larger distance; the images nearest to it should be those nearest to the composition (appendix, figure 7).

The released code plots |x|, which has the same peaks as the distance up to the curvature of the factors. The indices of
factors belong to one training run, and are reported without comparison to the paper's. As in figure 4a, the peaks are
illustrated by pictures that are drawn at random from the 0.1 % of the images with the largest distances there.

Shapes: n images, k factors, d width of a factor.
"""

from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trainer.analyses.shard_points import HELD_OUT, ShardPoints, embed_shards
from trainer.evaluation.metrics.ranking import top_k
from trainer.evaluation.metrics.spaces import Lorentz
from trainer.evaluation.plots import draw_norms, draw_pictures
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import (
    Embedder,
    Figure,
    MissingFilesError,
    TaskOptions,
    TaskResult,
    UnsuitableModelError,
)
from trainer.evaluation.tasks.examples import lift_texts
from trainer.models.phyclip import PHyCLIP
from trainer.models.registry import model_name

# Factors of a product of hyperbolic spaces (PHyCLIP, section 4.3 and appendix): norms, and compositions by maximum.
#
# Shapes: n points, k factors, d width of a factor; points are [k n d]. `curvature` is c > 0 of each factor, [k 1].


def factor_norms(points: Tensor, curvature: Tensor) -> Tensor:
    """Geodesic distances [n k] of points [k n d] from the origins of their factors, the hyperbolic norms of the paper.

    The released code uses |x|, which has the same order within a factor.
    """
    return Lorentz(curvature).radius(points).T


def max_composition(first: Tensor, second: Tensor, curvature: Tensor) -> Tensor:
    """Points [k n d] that have, in each factor, the point of `first` or `second` [k n d] with the larger norm.

    Equal norms select `first`. Its factor norms are the maxima of the two, as in the union of two sets.
    """
    norms = [factor_norms(points, curvature).T[..., None] for points in (first, second)]
    return torch.where(norms[1] > norms[0], second, first)


def percentiles(values: Tensor) -> Tensor:
    """Share [* k] of the other values of a row [* k] that are smaller than each value; 1 for the largest, if alone."""
    k = values.shape[-1]
    return (values[..., None, :] < values[..., :, None]).sum(-1).double() / max(1, k - 1)


class Composition(NamedTuple):
    """Prompts of two concepts and of their composition, as in the released code."""

    first: str
    second: str
    both: str


COMPOSITIONS: Final = (
    Composition("a photo of a dog", "a photo of a car", "a photo of a dog and a car"),
    Composition("a photo of a boy", "a photo of a bicycle", "a photo of a boy and a bicycle"),
    Composition("a photo of a sunset", "a photo of an ocean", "a photo of a sunset over the ocean"),
    Composition("a photo of a desk", "a photo of a cup of coffee", "a photo of a cup of coffee on a desk"),
)
HIGH: Final = 0.9
"""A distance is high if it is larger than this share of the other factors' distances of the same text."""
TOP: Final = 10
MAX_IMAGES: Final = 100_000
N_FACTORS_SHOWN: Final = 8
TOP_SHARE: Final = 0.001
"""Share of the images from which the pictures of a factor are drawn, as in figure 4a, if it holds `N_PICTURES`."""
N_PICTURES: Final = 6


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Compute the norms of the compositions, and the retrieval results if there are held-out shards.

    Raises UnsuitableModelError for a model without factors.
    """
    model = embedder.model
    if not isinstance(model, PHyCLIP):
        raise UnsuitableModelError(f"{model_name(model)} has no factors; choose a phyclip model")
    curvature, texts = model.curvature().detach(), list(dict.fromkeys(text for row in COMPOSITIONS for text in row))
    points = lift_texts(embedder, texts)
    norms = factor_norms(points, curvature).cpu()
    rows = {text: norms[number] for number, text in enumerate(texts)}
    place = {text: number for number, text in enumerate(texts)}
    found = [compare(rows, composition) for composition in COMPOSITIONS]
    metrics = {
        "mean_percentile_at_peaks": sum(sum(entry["percentiles"]) / 2 for entry in found) / len(found),
        "share_high_at_both_peaks": sum(entry["high_at_both"] for entry in found) / len(found),
    }
    details: dict[str, object] = {"compositions": found}
    figures = [figure_of(rows, composition, number) for number, composition in enumerate(COMPOSITIONS)]
    n_used, skipped, sums = len(COMPOSITIONS), {}, {}
    chance = {"mean_percentile_at_peaks": 0.5}
    try:
        shards = embed_shards(embedder, root, options.max_examples or MAX_IMAGES)
    except MissingFilesError as error:
        details["missing"] = {"retrieval": str(error)}
    else:
        n_used, skipped, sums = len(shards.captions), shards.skipped, checksums(root, root / HELD_OUT)
        images = shards.lifted(model)["image"]
        entries = [retrieve(model, points, place, composition, images, shards, options) for composition in COMPOSITIONS]
        metrics[f"overlap@{TOP}"] = sum(entry["overlap"] for entry in entries) / len(entries)
        chance[f"overlap@{TOP}"] = min(TOP, n_used) / n_used
        details["retrieval"] = entries
        by_factor = factor_norms(images, curvature).cpu()
        details["top_images_by_factor"] = top_images(by_factor, shards.captions)
        figures.append(
            pictures_of([peak for entry in found for peak in entry["peaks"]], by_factor, shards, options.seed)
        )
    return TaskResult(
        metrics=metrics,
        chance=chance,
        rules={
            "score": options.ranking,
            "high": f"larger than {HIGH:.0%} of the other factors",
            "prompts": "those of the released code; the paper writes 'a photo of a A and a B' for all",
        },
        n_used=n_used,
        skipped=skipped,
        checksums=sums,
        details=details,
        figures=figures,
    )


def compare(rows: dict[str, Tensor], composition: Composition) -> dict[str, Any]:
    """The peaks of two concepts, and the percentiles of the composition's norms there."""
    peaks = [int(rows[text].argmax()) for text in (composition.first, composition.second)]
    shares = [percentiles(rows[composition.both])[peak].item() for peak in peaks]
    return {
        "composition": composition.both,
        "concepts": [composition.first, composition.second],
        "peaks": peaks,
        "percentiles": shares,
        "high_at_both": min(shares) >= HIGH,
    }


def figure_of(rows: dict[str, Tensor], composition: Composition, number: int) -> Figure:
    """The norms of two concepts and of their composition by factor."""
    peaks = {text.removeprefix("a photo of "): int(rows[text].argmax()) for text in composition[:2]}
    norms = {text: rows[text].numpy() for text in composition}
    return Figure(f"norms_{number + 1}", f"Distances by factor: {composition.both}", draw_norms, norms, peaks)


@torch.no_grad()
def retrieve(
    model: PHyCLIP,
    points: Tensor,
    place: dict[str, int],
    composition: Composition,
    images: Tensor,
    shards: ShardPoints,
    options: TaskOptions,
) -> dict[str, Any]:
    """The images nearest to X_max and to the composition, by their captions, and their overlap."""
    first, second, both = (points[:, place[text]][:, None] for text in composition)
    queries = torch.cat([max_composition(first, second, model.curvature()), both], 1)
    _, best = top_k(partial(model.scores, ranking=options.ranking), queries, images, TOP)
    return {
        "composition": composition.both,
        "overlap": torch.isin(best[0], best[1]).double().mean().item(),
        "nearest_to_maximum": [shards.captions[i] for i in best[0].tolist()],
        "nearest_to_composition": [shards.captions[i] for i in best[1].tolist()],
    }


def drawn_from_top(norms: Tensor, seed: int) -> list[int]:
    """The numbers of `N_PICTURES` images drawn from the top 0.1 % of the norms [n], or the top ones of fewer images."""
    top = norms.topk(min(len(norms), max(N_PICTURES, int(TOP_SHARE * len(norms))))).indices
    chosen = torch.randperm(len(top), generator=torch.Generator().manual_seed(seed))[:N_PICTURES]
    return top[chosen].tolist()


def pictures_of(peaks: list[int], norms: Tensor, shards: ShardPoints, seed: int) -> Figure:
    """Pictures of the images with the largest norms [n k] in each of the factors `peaks`."""
    rows = {
        f"factor {peak}": [shards.images[number] for number in drawn_from_top(norms[:, peak], seed)]
        for peak in dict.fromkeys(peaks)
    }
    title = f"Images from the top {TOP_SHARE:.1%} of the factors at the peaks"
    return Figure("pictures", title, draw_pictures, rows)


def top_images(norms: Tensor, captions: list[str]) -> dict[str, list[str]]:
    """Captions of the images with the largest norms [n k] in a factor, for the factors with the largest spread."""
    factors = norms.std(0, unbiased=False).topk(min(N_FACTORS_SHOWN, norms.shape[1])).indices.tolist()
    k = min(TOP, len(captions))
    return {f"factor {factor}": [captions[i] for i in norms[:, factor].topk(k).indices.tolist()] for factor in factors}
