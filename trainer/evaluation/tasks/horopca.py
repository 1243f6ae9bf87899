"""HoroPCA of texts, images, phrases and boxes in the Poincaré disk (HyCoCLIP, figure 5; PHyCLIP, figure 4).

HyCoCLIP plots 200 pairs with a box each. For PHyCLIP, the factor with the largest mean distance of all points from the
origin is plotted; the paper chooses factors by hand.

Shapes: n points of a group, k factors, d width of a factor.
"""

from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.evaluation.analysis.drawing import draw_disk
from trainer.evaluation.analysis.horopca import horopca
from trainer.evaluation.analysis.radii import NAMES
from trainer.evaluation.analysis.spaces import factor_points
from trainer.evaluation.annotations import checksums
from trainer.evaluation.shard_points import HELD_OUT, embed_shards
from trainer.evaluation.tasks.base import Embedder, Figure, Task, TaskOptions, TaskResult, UnsuitableModelError
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.registry import model_name

N_SAMPLES: Final = 200


class DiskPoints(NamedTuple):
    """Points of one factor in the unit ball, in groups."""

    points: Tensor  # [n d]
    groups: dict[str, slice]  # rows of each group
    factor: int
    n_samples: int
    skipped: dict[str, int]

    def split(self, coordinates: Tensor) -> dict[str, NDArray[np.float64]]:
        """Coordinates [n 2] by the name of the group."""
        return {NAMES[part]: coordinates[rows].numpy() for part, rows in self.groups.items()}


def disk_points(embedder: Embedder, root: Path, options: TaskOptions) -> DiskPoints:
    """Embed samples of held-out shards with their first box.

    Raises MissingFilesError without shards, and UnsuitableModelError for a model without hyperbolic space.
    """
    model = embedder.model
    if not isinstance(model, Hyperbolic):
        raise UnsuitableModelError(f"{model_name(model)} has no hyperbolic space; choose a hyperbolic model")
    found = embed_shards(embedder, root, min(options.max_examples or N_SAMPLES, N_SAMPLES))
    lifted = found.lifted(model)
    first = torch.tensor(
        [row for row in range(len(found.owner)) if row == 0 or found.owner[row] != found.owner[row - 1]]
    )
    parts = {
        part: factor_points(
            model, points if part in ("text", "image") else points[..., first.to(points.device), :]
        ).cpu()
        for part, points in lifted.items()
    }
    groups, start = {}, 0
    for part, points in parts.items():
        groups[part] = slice(start, start + points.shape[1])
        start += points.shape[1]
    joined = torch.cat(list(parts.values()), 1)
    factor = int(joined.norm(dim=-1).clamp(max=1 - 1e-12).atanh().mean(1).argmax())
    return DiskPoints(joined[factor], groups, factor, len(found.captions), found.skipped)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Compute two horospherical components. Raises MissingFilesError, and UnsuitableModelError for a model without curvature."""
    data = disk_points(embedder, root, options)
    found = horopca(data.points)
    groups = data.split(found.coordinates)
    return TaskResult(
        metrics={
            "explained": found.explained,
            "reflected": found.reflected,
            **{f"{name}/median_distance": median_distance(points) for name, points in groups.items()},
        },
        rules={
            "explained": "mean squared distance of the projections, as a share of that of the points",
            "reflected": "share of points beyond the hull of the ideal points, projected to its near side",
            "center": "Frechet mean",
            "factor": str(data.factor),
        },
        n_used=data.n_samples,
        skipped=data.skipped,
        checksums=checksums(root, root / HELD_OUT),
        details={"coordinates": {name: points.round(4).tolist() for name, points in groups.items()}},
        figures=[Figure(name="disk", title="HoroPCA, two components", draw=partial(draw_disk, groups))],
    )


def median_distance(points: NDArray[np.float64]) -> float:
    """Median distance of points [n 2] of the disk from its center."""
    return float(np.median(2 * np.arctanh(np.linalg.norm(points, axis=1).clip(max=1 - 1e-12))))


TASK = Task(
    name="horopca",
    title="HoroPCA of texts, images, phrases and boxes",
    files=("held_out/00000.tar",),
    size="200 samples",
    source="shards of the pipeline that were not used for training",
    license="that of the shards",
    evaluate=evaluate,
)
