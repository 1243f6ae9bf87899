"""CO-SNE of texts, images, phrases and boxes in the Poincaré disk (HyCoCLIP, figure 5).

As in HyCoCLIP, points of more dimensions are reduced to 50 principal components first, here in the tangent space at the
origin. The samples are those of the task horopca.
"""

from functools import partial
from pathlib import Path
from typing import Final

from common.errors import UserError
from trainer.evaluation.analysis.cosne import CosneSettings, cosne, principal_components
from trainer.evaluation.analysis.drawing import draw_disk
from trainer.evaluation.annotations import checksums
from trainer.evaluation.shard_points import HELD_OUT
from trainer.evaluation.tasks.base import Embedder, Figure, Task, TaskOptions, TaskResult
from trainer.evaluation.tasks.horopca import disk_points, median_distance

COMPONENTS: Final = 50
MIN_POINTS: Final = 8


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Compute the coordinates.

    Raises MissingFilesError without held-out shards, UnsuitableModelError for a model without hyperbolic space, and
    UserError for too few points.

    `options.rule` selects the similarity in the disk. The perplexity is reduced for few points.
    """
    data = disk_points(embedder, root, options)
    if len(data.points) < MIN_POINTS:
        raise UserError(f"cosne: {root / HELD_OUT} has {len(data.points)} points; give at least {MIN_POINTS}")
    settings = CosneSettings(kernel=options.rule, perplexity=min(CosneSettings.perplexity, (len(data.points) - 1) / 3))
    found = cosne(principal_components(data.points, COMPONENTS), settings)
    groups = data.split(found.coordinates)
    return TaskResult(
        metrics={
            "divergence_nats": found.divergence,
            "mean_error_of_distance_to_origin": found.norm_error,
            **{f"{name}/median_distance": median_distance(points) for name, points in groups.items()},
        },
        rules={
            "kernel": options.rule,
            "perplexity": f"{settings.perplexity:g}",
            "reduction": f"{min(COMPONENTS, data.points.shape[1])} components in the tangent space at the origin",
            "factor": str(data.factor),
        },
        n_used=data.n_samples,
        skipped=data.skipped,
        checksums=checksums(root, root / HELD_OUT),
        details={"coordinates": {name: points.round(4).tolist() for name, points in groups.items()}},
        figures=[Figure(name="disk", title="CO-SNE", draw=partial(draw_disk, groups))],
    )


TASK = Task(
    name="cosne",
    title="CO-SNE of texts, images, phrases and boxes",
    files=("held_out/00000.tar",),
    size="200 samples",
    source="shards of the pipeline that were not used for training",
    license="that of the shards",
    evaluate=evaluate,
)
