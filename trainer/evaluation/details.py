"""Details of an evaluation beside its results, for pictures.

Shapes: n points of a stream, c classes, d embedding width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.evaluation.analysis.radii import quantity, root_distances
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
    def add_distances(self, model: DualEncoder, lifted: Mapping[str, Tensor]) -> None:
        """Compute the distances of the streams of lifted points from the root."""
        self.distances, self.quantity = root_distances(model, lifted), quantity(model)
