"""Distances of the points of a model from the root of its space.

Shapes: n points of a group, k factors, d width of a point; [*k n d] is [n d], or [k n d] in a product of factors.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from trainer.evaluation.analysis.spaces import Space, space_of
from trainer.models.dual_encoder import DualEncoder
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.phyclip import PHyCLIP

NAMES: Final = {"text": "texts", "image": "images", "box_text": "phrases", "box_image": "boxes"}
"""The names of the groups of points in figures."""


def space_of_points(model: DualEncoder, lifted: Mapping[str, Tensor]) -> Space:
    """The space of a model; the root of CLIP is the mean direction of all points."""
    return space_of(model, None if isinstance(model, Hyperbolic) else torch.cat(list(lifted.values())).mean(0))


def quantity(model: DualEncoder) -> str:
    """The label of an axis with the distances of a model."""
    label = "distance to the origin" if isinstance(model, Hyperbolic) else "1 - cosine to the mean direction"
    return f"{label}, sum over the factors" if isinstance(model, PHyCLIP) else label


def over_factors(radii: Tensor) -> Tensor:
    """Distances [n] from those by factor, [n] or [k n]: their sum."""
    return radii.sum(0) if radii.ndim == 2 else radii


def root_distances(model: DualEncoder, lifted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Distances [n] of each group of lifted points [*k n d] from the root, float64 on the CPU."""
    space = space_of_points(model, lifted)
    return {name: over_factors(space.radius(points)).cpu() for name, points in lifted.items()}
