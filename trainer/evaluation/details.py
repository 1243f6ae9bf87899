"""Details of an evaluation beside its results, for pictures.

Shapes: n points of a stream, c classes, d embedding width.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.evaluation.analysis.radii import quantity, root_distances
from trainer.evaluation.embed import device_of
from trainer.evaluation.held_out_points import HeldOutPoints
from trainer.models.dual_encoder import DualEncoder


class Confusion(NamedTuple):
    """The predictions for one image folder."""

    table: Tensor  # [c c] numbers of images by true class (row) and predicted class (column)
    names: list[str]


@dataclass(kw_only=True)
class Details:
    """Findings of an evaluation. `Evaluation` adds them; without folders and held-out shards there are none."""

    confusions: dict[str, Confusion] = field(default_factory=dict)  # by the name of the folder
    distances: dict[str, Tensor] = field(default_factory=dict)  # [n] from the root, by stream
    quantity: str = ""  # the label of an axis with the distances

    @torch.no_grad()
    def add_distances(self, model: DualEncoder, points: HeldOutPoints) -> None:
        """Compute the distances of images and captions, and of boxes and phrases if there are any, from the root."""
        device = device_of(model)
        lifted = {"image": model.lift_image(points.image.to(device)), "text": model.lift_text(points.text.to(device))}
        if len(points.owner):
            lifted["box_image"] = model.lift_image(points.box_image.to(device))
            lifted["box_text"] = model.lift_text(points.box_text.to(device))
        self.distances, self.quantity = root_distances(model, lifted), quantity(model)
