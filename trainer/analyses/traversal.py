"""Image traversals: the texts nearest to the points between an image and the root (MERU, section 5 and appendix D).

The points are equally spaced in the tangent space at the root. MERU compares only texts whose entailment cones contain
the point; HyCoCLIP compares all texts, images and boxes of its pool. Both results are given. The root of the hyperbolic
models is the origin; that of CLIP is the mean of the training data, as in the papers, if the option `root` gives it, or
else the mean direction of the pool and the images.

Shapes: n images, s steps of a path, m entries of a pool, d width of the features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import torch
from torch import Tensor

from trainer.analyses.pools import Pool, read_pools
from trainer.analyses.shard_points import embed_shards
from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.paths import PathRule, distinct, nearest, path_between, path_to_root
from trainer.evaluation.metrics.ranking import score_of_any
from trainer.evaluation.metrics.spaces import Space, WithCones, center_of, root_rule, space_of
from trainer.evaluation.plots import draw_paths
from trainer.evaluation.sets.annotations import below, checksums
from trainer.evaluation.sets.image_folders import SUFFIXES
from trainer.evaluation.task import Embedder, Figure, ImageSource, MissingFilesError, TaskOptions, TaskResult
from trainer.models.cones import Cones
from trainer.models.dual_encoder import DualEncoder

MAX_IMAGES: Final = 64
N_HELD_OUT: Final = 8
N_DRAWN: Final = 3
ROOT: Final = "[ROOT]"


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Images from which paths start: features [n d], titles, and paths below the data folder (None: in shards)."""

    features: Tensor
    titles: list[str]
    paths: list[str | None]
    skipped: dict[str, int]

    def describe(self, number: int) -> dict[str, Any]:
        """The image as an entry of the details."""
        path = self.paths[number]
        return {"image": path} if path is not None else {"start": self.titles[number]}


def read_starts(embedder: Embedder, root: Path, limit: int = 0) -> Starts:
    """Embed the images of ROOT/traversal, at most `MAX_IMAGES`, or else the first images of the held-out shards.

    Raises MissingFilesError if there are no images.
    """
    folder = root / "traversal"
    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)[: limit or MAX_IMAGES]
    found = embedder.images([ImageSource(path=path) for path in paths], "crop")
    kept = [number for number in range(len(paths)) if number not in found.errors]
    if kept:
        return Starts(
            features=found.features[kept],
            titles=[paths[number].name for number in kept],
            paths=[below(root, paths[number]) for number in kept],
            skipped={"unreadable image": len(found.errors)} if found.errors else {},
        )
    try:
        points = embed_shards(embedder, root, min(limit or N_HELD_OUT, N_HELD_OUT))
    except MissingFilesError as error:
        raise MissingFilesError(f"images: expected {folder}/*.jpg; {error}") from error
    names = [f"image of: {caption}" for caption in points.captions]
    return Starts(features=points.image, titles=names, paths=[None] * len(names), skipped=points.skipped)


@dataclass(frozen=True, kw_only=True)
class Walk:
    """A pool and start images in the space of a model."""

    model: DualEncoder
    space: Space
    starts: Tensor  # [*k n d]
    pool: Tensor  # [*k m d]
    is_text: Tensor  # [m]
    labels: list[str]  # of the pool and the root
    root_rule: str  # for the rules of a result

    def nearest(self, path: Tensor, options: TaskOptions, entailing: bool = False) -> list[int]:
        """The nearest entry for each step of a path [*k s d]; m stands for the root."""
        score = score_of_any(self.model, options.ranking)
        min_radius = self.model.config.min_radius if isinstance(self.model, Cones) else 0.0
        can_entail = self.is_text.to(self.pool.device) if entailing else None
        with torch.no_grad():
            found: list[int] = nearest(score, self.space, path, self.pool, can_entail, min_radius).tolist()
        return found

    def texts(self, indices: Sequence[int]) -> list[str]:
        """The labels of entries."""
        return [self.labels[index] for index in indices]


def start_walk(embedder: Embedder, starts: Starts, pool: Pool, root: str = "") -> Walk:
    """Lift a pool and start images. `root` is the file with the root of CLIP."""
    model = embedder.model
    points = pool.lift(embedder)
    with torch.no_grad():
        images = model.lift_image(starts.features.to(device_of(model)))
    center = center_of(model, [points, images], root)
    return Walk(
        model=model,
        space=space_of(model, center),
        starts=images,
        pool=points,
        is_text=pool.is_text,
        labels=[*pool.labels, ROOT],
        root_rule=root_rule(model, "the pool and the images", root),
    )


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Retrieve the entries on the way to the root from each pool that is found, with and without the filter by cones.

    Raises MissingFilesError without images or pools, and UserError if all pools that are found are malformed.
    """
    starts = read_starts(embedder, root, options.max_examples)
    pools, problems = read_pools(embedder, root, options.max_examples)
    metrics: dict[str, float] = {}
    details: dict[str, object] = problems.details()
    rules = {
        "score": options.ranking,
        "steps": str(options.traversal_steps),
        "all": "all entries of the pool and the root are compared",
        "entailing": "only texts whose cones contain the step, and the root, are compared",
    }
    figures: list[Figure] = []
    for name, pool in pools.items():
        walk = start_walk(embedder, starts, pool, options.root)
        rules[f"{name}/root"] = walk.root_rule
        variants = ("all", "entailing") if isinstance(walk.space, WithCones) else ("all",)
        entries = [starts.describe(row) for row in range(len(starts.titles))]
        for variant in variants:
            found = []
            for row, entry in enumerate(entries):
                path = path_to_root(walk.space, walk.starts[..., row : row + 1, :], options.traversal_steps)
                found.append(walk.nearest(path, options, entailing=variant == "entailing"))
                entry[variant] = walk.texts(distinct(found[-1]))
            metrics |= {f"{name}/{variant}/{key}": value for key, value in summarize(found, len(pool.labels)).items()}
            drawn = {starts.titles[row]: walk.texts(found[row]) for row in range(min(N_DRAWN, len(found)))}
            title = f"Nearest {variant} entries of {name} on the way to the root"
            label = f"step, from the image to the root ({variant} entries of {name})"
            figures.append(Figure(f"{name}_{variant}", title, draw_paths, drawn, label))
        details[name] = entries
    return TaskResult(
        n_used=len(starts.titles),
        metrics=metrics,
        rules=rules,
        details=details,
        figures=figures,
        **sources(root, starts, pools),
    )


def summarize(found: list[list[int]], root: int) -> dict[str, float]:
    """Mean number of different entries on a path without the root, and the share of steps nearest to the root."""
    return {
        "mean_count_of_entries": sum(len(set(indices) - {root}) for indices in found) / len(found),
        "share_of_steps_at_root": sum(indices.count(root) for indices in found) / sum(map(len, found)),
    }


def sources(root: Path, starts: Starts, pools: dict[str, Pool]) -> dict[str, Any]:
    """The numbers of images and entries that were not used, by reason, and the checksums of the pools' files."""
    of_pools = {f"{name}: {why}": n for name, pool in pools.items() for why, n in pool.skipped.items()}
    files = [path for pool in pools.values() for path in pool.files]
    return {"skipped": starts.skipped | of_pools, "checksums": checksums(root, *files)}


# Interpolation between two images: the entries of a pool nearest to the points of a path (HyCoCLIP, appendix G).
#
# Three paths are compared: `paper` is straight in the tangent space at the root (eq. 15 and 16), `released` is that of
# the released code of HyCoCLIP and PHyCLIP, which takes the target itself for its tangent vector and ends beyond it, and
# `geodesic` is the shortest path. Images are paired in their order: 1 and 2, 3 and 4.

INTERPOLATION_STEPS: Final = 100
"""Steps of a path, as in HyCoCLIP."""
RULES: Final[tuple[PathRule, ...]] = get_args(PathRule)


def evaluate_interpolation(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Retrieve the entries on the paths between pairs of images, by each rule, from each pool that is found.

    Raises MissingFilesError without pools or with fewer than two images, and UserError if all pools that are found are
    malformed.
    """
    starts = read_starts(embedder, root, 2 * options.max_examples)
    n_pairs = len(starts.titles) // 2
    if not n_pairs:
        raise MissingFilesError(f"images: {root / 'traversal'} and the held-out shards have one image; give two")
    pools, problems = read_pools(embedder, root, options.max_examples)
    metrics: dict[str, float] = {}
    rules = {"score": options.ranking, "steps": str(INTERPOLATION_STEPS), "paths": ", ".join(RULES)}
    details: dict[str, object] = problems.details()
    figures = []
    for name, pool in pools.items():
        walk = start_walk(embedder, starts, pool, options.root)
        rules[f"{name}/root"] = walk.root_rule
        entries = [starts.describe(2 * pair) | {"target": starts.titles[2 * pair + 1]} for pair in range(n_pairs)]
        drawn = {}
        for rule in RULES:
            numbers, gaps = [], []
            for pair, entry in enumerate(entries):
                start, end = (walk.starts[..., 2 * pair + i : 2 * pair + i + 1, :] for i in range(2))
                path = path_between(walk.space, start, end, INTERPOLATION_STEPS, rule)
                found = walk.nearest(path, options)
                entry[rule] = walk.texts(distinct(found))
                numbers.append(len(set(found)))
                gaps.append(distance(walk, path[..., -1:, :], end))
                if pair == 0:
                    drawn[f"{rule}: {starts.titles[0]} to {starts.titles[1]}"] = walk.texts(found)
            metrics[f"{name}/{rule}/mean_count_of_entries"] = sum(numbers) / n_pairs
            metrics[f"{name}/{rule}/mean_distance_of_end_from_target"] = sum(gaps) / n_pairs
        details[name] = entries
        label = f"step, from the first to the second image (entries of {name})"
        figures.append(Figure(name, f"Nearest entries of {name} between two images", draw_paths, drawn, label))
    return TaskResult(
        n_used=n_pairs, metrics=metrics, rules=rules, details=details, figures=figures, **sources(root, starts, pools)
    )


@torch.no_grad()
def distance(walk: Walk, first: Tensor, second: Tensor) -> float:
    """Distance of two points [*k 1 d] in the metric of the model; for CLIP, 1 - cosine."""
    return walk.model.distance(first.to(second), second).item()
