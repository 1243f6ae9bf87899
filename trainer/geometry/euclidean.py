"""Flat space with entailment cones around the origin (EuCLIP, arXiv 2409.13079): the limit of the ball for c -> 0.

Shapes: any leading axes *, then d; b queries, n candidates.
"""

import torch
from torch import Tensor

from trainer.geometry import lorentz, poincare
from trainer.geometry.types import EPS


def pairwise_squared_distance(x: Tensor, y: Tensor) -> Tensor:
    """Squared Euclidean distances |x - y|^2, summed in float64: each is a difference of nearly equal numbers.

    Args:
        x: points [b d].
        y: points [n d].

    Returns:
        Squared distances [b n] of each x to each y, at least 0, in the dtype of `x`.
    """
    x64, y64 = x.double(), y.double()
    squares = x64.square().sum(-1)[:, None] + y64.square().sum(-1)
    return (squares - 2 * x64 @ y64.T).clamp(min=0).to(x.dtype)


def inner_coordinates(x: Tensor, sign: int) -> Tensor:
    """Coordinates of points, whose inner products are minus squared distances.

    Those of queries, with sign -1, are (2 x, -1, -|x|^2); those of candidates, with sign 1, are (y, |y|^2, 1).

    Args:
        x: points [* d].
        sign: -1 for queries, 1 for candidates.

    Returns:
        Coordinates [* d+2].
    """
    square = x.square().sum(-1, keepdim=True)
    one = torch.ones_like(square)
    return torch.cat([2 * x, -one, -square] if sign < 0 else [x, square, one], -1)


def half_aperture(apex: Tensor, min_radius: float = 0.1, eps: float = EPS) -> Tensor:
    """Half-apertures of the entailment cones at `apex`, in radians.

        asin(K / |x|)      Ganea et al. 2018 (arXiv 1804.01882)

    Args:
        apex: points [* d].
        min_radius: K. For |x| < K the formula is undefined, and the cone is a half-space.
        eps: half-apertures are at most pi/2 - acos(1 - eps).

    Returns:
        Angles [*].
    """
    return lorentz.half_aperture(apex, apex.new_ones(()), min_radius / 2, eps)


def exterior_angle(apex: Tensor, point: Tensor, eps: float = EPS) -> Tensor:
    """Exterior angles at `apex`: between the ray from the origin through it, and the line to `point`.

        acos( x . (y - x) / (|x| |y - x|) )      Ganea et al. 2018 (arXiv 1804.01882)

    Args:
        apex: points [* d].
        point: points [* d].
        eps: keeps the gradient finite for points on the line through the origin and the apex.

    Returns:
        Angles [*] in radians, from 0 to pi; pi/2 for equal points and for an apex at the origin.
    """
    return poincare.exterior_angle(apex, point, apex.new_zeros(()), eps)
