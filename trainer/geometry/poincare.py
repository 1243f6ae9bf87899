"""The Poincaré ball of curvature -c, c > 0: points x with c|x|^2 < 1.

The formulas are PoinCLIP's, made consistent with each other; docs/ablations.md lists the corrections.
Shapes are those of `lorentz`: any leading axes *, then d; `curvature` is c and broadcasts against the leading axes.

The isometry p = x / (1 + sqrt(1 + c|x|^2)) maps the space components x of a Lorentz point to the ball. Distances and
angles here are equal to those of `lorentz` at the mapped points.
"""

from typing import Final

import torch
from torch import Tensor

from trainer.geometry.lorentz import direction, scaled_norm
from trainer.geometry.types import EPS, Lift

BOUNDARY_MARGIN: Final = 1e-5
"""Norms are clamped to (1 - BOUNDARY_MARGIN)/sqrt(c): float32 cannot resolve points closer to the boundary."""


def mobius_add(x: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
    """Möbius sum x (+) y.

    [(1 + 2c x.y + c|y|^2) x + (1 - c|x|^2) y] / (1 + 2c x.y + c^2 |x|^2 |y|^2)      PoinCLIP eq. 5 with K = -c

    Args:
        x: points of the ball [* d].
        y: points of the ball [* d].
        curvature: c, broadcasts against [*].

    Returns:
        Points of the ball [* d]. They are not clamped: rounding can put a sum near the boundary outside.
    """
    c = curvature[..., None]
    dot, x2, y2 = ((a * b).sum(-1, keepdim=True) for a, b in ((x, y), (x, x), (y, y)))
    return ((1 + 2 * c * dot + c * y2) * x + (1 - c * x2) * y) / (1 + 2 * c * dot + c**2 * x2 * y2)


def exp_map0(tangent: Tensor, curvature: Tensor, lift: Lift = "conformal") -> Tensor:
    """Exponential map at the origin: tangent vectors [* d] to points [* d].

        tanh(sqrt(c)|v|) v / (sqrt(c)|v|)      lift="conformal", PoinCLIP eq. 3 with the conformal factor 2

    Args:
        tangent: vectors at the origin [* d].
        curvature: c, broadcasts against [*].
        lift: "conformal" puts the point at the distance 2|v| from the origin. "isometric" halves the argument of tanh,
            so that the distance is |v|: this is `lorentz.exp_map0`, mapped to the ball by the isometry.

    Returns:
        Points [* d]. Lengths are at most (1 - BOUNDARY_MARGIN)/sqrt(c); directions are kept.
    """
    radius = scaled_norm(tangent, curvature)
    scaled = (radius if lift == "conformal" else radius / 2).tanh().clamp(max=1 - BOUNDARY_MARGIN)
    return scaled / radius.clamp(min=EPS) * tangent


def log_map0(point: Tensor, curvature: Tensor, lift: Lift = "conformal") -> Tensor:
    """Logarithmic map at the origin, the inverse of `exp_map0`: points [* d] to tangent vectors [* d].

        artanh(sqrt(c)|p|) p / (sqrt(c)|p|)      PoinCLIP eq. 4

    Args:
        point: points of the ball [* d].
        curvature: c, broadcasts against [*].
        lift: that of `exp_map0`. "isometric" doubles the vector.

    Returns:
        Tangent vectors [* d], finite also for points on the boundary.
    """
    radius = scaled_norm(point, curvature)
    scale = 1 if lift == "conformal" else 2
    return scale * radius.clamp(min=EPS, max=1 - BOUNDARY_MARGIN).atanh() / radius.clamp(min=EPS) * point


def distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Geodesic distances [*] between x [* d] and y [* d], element by element; leading axes broadcast.

        (2/sqrt(c)) artanh(sqrt(c) |(-x) (+) y|)  =  (2/sqrt(c)) asinh(u)      PoinCLIP eq. 2
        u^2 = c |x - y|^2 / ((1 - c|x|^2)(1 - c|y|^2))

    The second form is used, because it is accurate near the boundary.

    Args:
        x: points of the ball [* d].
        y: points of the ball [* d].
        curvature: c, broadcasts against [*].
        eps: least u^2, which keeps the gradient of its square root finite: distances are at least
            2 asinh(sqrt(eps))/sqrt(c).

    Returns:
        Distances [*].
    """
    denominator = (one_minus_squared_norm(x, curvature) * one_minus_squared_norm(y, curvature)).squeeze(-1)
    u2 = curvature * (x - y).square().sum(-1) / denominator
    return 2 * u2.clamp(min=eps).sqrt().asinh() / curvature.sqrt()


def pairwise_distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Geodesic distances of each x to each y, as `distance`.

    The squared Euclidean distances are computed in float64, because they are differences of nearly equal numbers.

    Args:
        x: points of the ball [*k b d].
        y: points of the ball [*k n d].
        curvature: c, broadcasts against [*k b].
        eps: as in `distance`.

    Returns:
        Distances [*k b n].
    """
    c = curvature[..., None]
    x64, y64 = x.double(), y.double()
    norms = x64.square().sum(-1, keepdim=True) + y64.square().sum(-1, keepdim=True).mT
    squared = (norms - 2 * x64 @ y64.mT).to(x.dtype)
    u2 = c * squared / (one_minus_squared_norm(x, curvature) * one_minus_squared_norm(y, curvature).mT)
    return 2 * u2.clamp(min=eps).sqrt().asinh() / c.sqrt()


def half_aperture(apex: Tensor, curvature: Tensor, min_radius: float = 0.1, eps: float = EPS) -> Tensor:
    """Half-apertures [*] of the entailment cones at `apex` [* d], in radians.

        asin(K (1 - c|x|^2) / (sqrt(c)|x|))      PoinCLIP eq. 8 for any c; MERU eq. 13

    Args:
        apex: points of the ball [* d].
        curvature: c, broadcasts against [*].
        min_radius: K. Near the origin, where the argument exceeds 1, the cone is a half-space.
        eps: half-apertures are at most pi/2 - acos(1 - eps).

    Returns:
        Angles [*].
    """
    radius = scaled_norm(apex, curvature).squeeze(-1) + eps
    margin = one_minus_squared_norm(apex, curvature).squeeze(-1)
    one_minus_sin = ((radius - min_radius * margin) / radius).clamp(min=eps)
    return torch.atan2(1 - one_minus_sin, (one_minus_sin * (2 - one_minus_sin)).sqrt())


def exterior_angle(apex: Tensor, point: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Exterior angles [*] at `apex` [* d] towards `point` [* d], in radians.

    The exterior angle lies between the ray from the origin through the apex and the geodesic from the apex to the
    point.

        acos[ (x.y (1 + c|x|^2) - |x|^2 (1 + c|y|^2)) / (|x| |x - y| sqrt(1 + c^2 |x|^2 |y|^2 - 2c x.y)) ]
                                                                                          PoinCLIP eq. 7 for any c

    The geodesic leaves x in the direction (-x) (+) y. The atan2 of the components of that vector orthogonal to x and
    along x is the same angle.

    Args:
        apex: points of the ball [* d].
        point: points of the ball [* d].
        curvature: c, broadcasts against [*]; 0 gives the angle of flat space.
        eps: keeps the gradient finite for points on the line through the origin and the apex.

    Returns:
        Angles [*] from 0 to pi; pi/2 for equal points and for an apex at the origin.
    """
    c = curvature
    unit = direction(apex)
    step = point - apex
    along = (step * unit).sum(-1)
    across2 = (step - along[..., None] * unit).square().sum(-1)
    radius = apex.norm(dim=-1)
    outward = along * (1 - c * radius * (radius + along)) - c * radius * across2
    sideways2 = one_minus_squared_norm(apex, curvature).squeeze(-1) ** 2 * across2
    # eps**2 keeps the gradient of the square root finite for points on the line through the origin and the apex.
    return torch.atan2((sideways2 + eps**2).sqrt(), outward)


def one_minus_squared_norm(x: Tensor, curvature: Tensor) -> Tensor:
    """1 - c|x|^2 of points. The conformal factor is 2 divided by it.

    Args:
        x: points of the ball [* d].
        curvature: c, broadcasts against [*].

    Returns:
        Numbers [* 1], at least `BOUNDARY_MARGIN`.
    """
    radius = scaled_norm(x, curvature)
    return ((1 - radius) * (1 + radius)).clamp(min=BOUNDARY_MARGIN)
