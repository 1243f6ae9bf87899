"""Interpolation between two images: the entries of a pool nearest to the points of a path (HyCoCLIP, appendix G).

Three paths are compared: `paper` is straight in the tangent space at the root (eq. 15 and 16), `released` is that of
the released code of HyCoCLIP and PHyCLIP, which takes the target itself for its tangent vector and ends beyond it, and
`geodesic` is the shortest path. Images are paired in their order: 1 and 2, 3 and 4.
"""

from pathlib import Path
from typing import Final, get_args

import torch
from torch import Tensor

from trainer.analyses.pools import read_pools
from trainer.analyses.traversal import Walk, all_skipped, read_starts, start_walk
from trainer.evaluation.metrics.paths import PathRule, distinct, path_between
from trainer.evaluation.plots import draw_paths
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, Figure, MissingFilesError, TaskOptions, TaskResult

STEPS: Final = 100
"""Steps of a path, as in HyCoCLIP."""
RULES: Final[tuple[PathRule, ...]] = get_args(PathRule)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
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
    rules = {"score": options.ranking, "steps": str(STEPS), "paths": ", ".join(RULES)}
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
                path = path_between(walk.space, start, end, STEPS, rule)
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
        metrics=metrics,
        rules=rules,
        n_used=n_pairs,
        skipped=all_skipped(starts, pools),
        checksums=checksums(root, *(path for pool in pools.values() for path in pool.files)),
        details=details,
        figures=figures,
    )


@torch.no_grad()
def distance(walk: Walk, first: Tensor, second: Tensor) -> float:
    """Distance of two points [*k 1 d] in the metric of the model; for CLIP, 1 - cosine."""
    return walk.model.distance(first.to(second), second).item()
