"""The points of an output in the Poincaré disk, for the explorer.

`python -m trainer.analyses.disk MODEL shards=OUT/train output=DISK.json` embeds images, captions, boxes and phrases of
samples spread over the shards and writes the places of their points in a disk, which `hypergrit explore OUT
disk=[DISK.json]` shows. Of PHyCLIP, it is the disk of the factor with the largest mean distance from the origin.

Shapes: n points, d width of the ball.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from hypergrit_common.cli import command
from hypergrit_common.devices import pick_device
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import write_object
from schemas.disk import KINDS, DiskFile
from schemas.rows import VERSION
from trainer.analyses.command import ShardsConfig, run
from trainer.analyses.cosne import COMPONENTS, TINY, CosneSettings, cosne, initial_coordinates, principal_components
from trainer.analyses.horopca import widest_factor
from trainer.checkpoints.model import LoadedModel
from trainer.evaluation.embed import embed_images, embed_texts
from trainer.evaluation.held_out.shards import HeldOut, HeldOutShards
from trainer.evaluation.metrics.spaces import factor_points
from trainer.evaluation.tasks.classification import evenly
from trainer.models.hyperbolic import Hyperbolic


@dataclass(frozen=True, kw_only=True)
class DiskConfig(ShardsConfig):
    """Settings of the command."""

    # cosne: CO-SNE (Guo et al. 2022), which keeps neighbours and about the distances from the origin, for at most 4000
    # points; norms: the distances from the origin, exactly, and the angles of the two principal components around the mean
    projection: Literal["cosne", "norms"] = "cosne"
    # maximum number of samples, spread over the shards; 0: all
    max_samples: int = 200


@torch.no_grad()
def ball_points(found: LoadedModel, samples: HeldOut, config: DiskConfig) -> Tensor:
    """Points [n d] of the unit ball of images, captions, boxes and phrases, in the order of KINDS. Raises UserError."""
    model = found.model.to(pick_device(config.device)).eval()
    if not isinstance(model, Hyperbolic):
        raise UserError(f"{type(model).__name__} has no hyperbolic space; give a hyperbolic model")
    parts = []
    for images, texts in ((samples.images, samples.captions), (samples.box_images, samples.box_texts)):
        if len(images):
            parts.append(model.lift_image(embed_images(model, images, config.batch_size)))
            parts.append(model.lift_text(embed_texts(model, found.tokenizer, texts, config.batch_size)))
    points = torch.cat([factor_points(model, part) for part in parts], 1).cpu()
    return points[widest_factor(points)]


def project(points: Tensor, projection: Literal["cosne", "norms"]) -> Tensor:
    """Places [n 2] in the unit disk of points [n d] of the unit ball. Raises UserError for too few or too many points."""
    if projection == "norms":
        flat = initial_coordinates(points)
        return flat * (points.norm(dim=-1) / flat.norm(dim=-1).clamp(min=TINY))[:, None]
    perplexity = min(CosneSettings.perplexity, max(len(points) - 1, 3) / 3)
    return cosne(principal_components(points, COMPONENTS), CosneSettings(perplexity=perplexity)).coordinates


def write_disk(path: str, found: LoadedModel, config: DiskConfig) -> str:
    """Write the points of a model, and return their number. Raises UserError if no sample can be read."""
    shards, size_px = HeldOutShards(config.shards), found.model.config.image.size_px
    samples = shards.read_part(evenly(shards.index.n_samples, config.max_samples), size_px)
    if not samples.captions:
        raise UserError(f"shards={config.shards}: no sample can be read; create the shards again")
    places = project(ball_points(found, samples, config), config.projection).double()
    keys = [key.rpartition("/")[2] for key in samples.keys]
    phrases = [(keys[owner], text) for owner, text in zip(samples.box_owner, samples.box_texts, strict=True)]
    rows = [list(zip(keys, samples.captions, strict=True))] * 2 + [phrases] * 2
    named = [(key, kind, text) for kind, part in zip(KINDS, rows, strict=True) for key, text in part]
    points = [[*name, *place] for name, place in zip(named, places.numpy().round(5).tolist(), strict=True)]
    disk = DiskFile(schema=VERSION, model=path, projection=config.projection, points=points)
    write_object({**disk}, Path(config.output))
    return f"{len(points)} points"


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return run(arguments, str(__doc__), DiskConfig, write_disk)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
