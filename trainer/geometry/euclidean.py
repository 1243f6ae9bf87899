"""Flat space with entailment cones around the origin (EuCLIP, arXiv 2409.13079): the limit of the ball for c -> 0.

Shapes: any leading axes *, then d; b queries, n candidates.
"""

import torch
from torch import Tensor

from trainer.geometry import lorentz, poincare
from trainer.geometry.types import EPS


def pairwise_squared_distance(x: Tensor, y: Tensor) -> Tensor:
    """|x - y|^2 [b n] of each x [b d] and each y [n d], summed in float64: it is a difference of nearly equal numbers."""
    x64, y64 = x.double(), y.double()
    squares = x64.square().sum(-1)[:, None] + y64.square().sum(-1)
    return (squares - 2 * x64 @ y64.T).clamp(min=0).to(x.dtype)


def inner_coordinates(x: Tensor, sign: int) -> Tensor:
    """Coordinates [* d+2] of points [* d], whose inner products are minus squared distances.

    Those of queries, with sign -1, are (2 x, -1, -|x|^2); those of candidates, with sign 1, are (y, |y|^2, 1).
    """
    square = x.square().sum(-1, keepdim=True)
    one = torch.ones_like(square)
    return torch.cat([2 * x, -one, -square] if sign < 0 else [x, square, one], -1)


def half_aperture(apex: Tensor, min_radius: float = 0.1, eps: float = EPS) -> Tensor:
    """Half-apertures [*] asin(K / |x|) of the cones at `apex` [* d], in radians; K is `min_radius`. pi/2 for |x| < K."""
    return lorentz.half_aperture(apex, apex.new_ones(()), min_radius / 2, eps)


def exterior_angle(apex: Tensor, point: Tensor, eps: float = EPS) -> Tensor:
    """Exterior angles [*] at `apex` [* d]: between the ray from the origin through it, and the line to `point` [* d].

    acos( x . (y - x) / (|x| |y - x|) )      Ganea et al. 2018 (arXiv 1804.01882); pi/2 for equal points
    """
    return poincare.exterior_angle(apex, point, apex.new_zeros(()), eps)
