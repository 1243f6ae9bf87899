"""The Lorentz model of hyperbolic space with curvature -c, c > 0.

A point is stored as its space components x. Its time component is x_t = sqrt(1/c + |x|^2), so that <x, x> = -1/c with
the Lorentzian inner product <x, y> = x . y - x_t y_t (MERU, section 2).

Shapes: any leading axes *, then d. `curvature` is c and broadcasts against the leading axes, so that the same functions
serve one space (points [b d], curvature []) and k factors (points [k b d], curvature [k 1]).

The formulas are those of the papers, rewritten with A = asinh(sqrt(c)|x|), the distance to the origin in units of
1/sqrt(c), and with the chord between directions. The printed formulas subtract numbers of the size of c x_t y_t; in
float32 the difference has no correct digits for points far from the origin, close to it, or close to each other.

`eps` limits the results as in the released code, because the limits affect the losses: distances are at least
acosh(1 + eps)/sqrt(c), exterior angles lie in [acos(1 - eps), pi - acos(1 - eps)], and half-apertures are at most
pi/2 - acos(1 - eps). MERU and HyCoCLIP use 1e-8, PHyCLIP uses 1e-6.
"""

import math
from typing import Any, Final

import torch
from torch import Tensor

from trainer.geometry.types import EPS

MAX_SINH: Final = 2.0**15
"""Largest sqrt(c)|x| that the exponential map returns, as in the released code. It is finite in half precision."""


def exp_map0(tangent: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Exponential map at the origin: tangent vectors [* d] to points [* d].

        sinh(sqrt(c)|v|) v / (sqrt(c)|v|)      MERU eq. 9

    Args:
        tangent: vectors at the origin [* d].
        curvature: c, broadcasts against [*].
        eps: smallest sqrt(c)|v| by which is divided.

    Returns:
        Points [* d]. Lengths are clamped to asinh(MAX_SINH)/sqrt(c); directions are kept.
    """
    radius = scaled_norm(tangent, curvature)
    clamped = radius.clamp(min=eps, max=math.asinh(MAX_SINH))
    return clamped.sinh() / radius.clamp(min=eps) * tangent


def log_map0(point: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Logarithmic map at the origin, the inverse of `exp_map0`: points [* d] to tangent vectors [* d].

        asinh(sqrt(c)|x|) x / (sqrt(c)|x|)      MERU eq. 8 at the origin

    Args:
        point: points [* d].
        curvature: c, broadcasts against [*].
        eps: smallest sqrt(c)|x| by which is divided.

    Returns:
        Tangent vectors [* d].
    """
    radius = scaled_norm(point, curvature)
    return radius.clamp(min=eps).asinh() / radius.clamp(min=eps) * point


def distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Geodesic distances [*] between x [* d] and y [* d], element by element; leading axes broadcast.

        acosh(-c <x, y>) / sqrt(c)      MERU eq. 4

    With the scaled distances to the origin A of x and B of y, and the angle t between x and y at the origin,
    -c <x, y> - 1 = 2 sinh^2((A - B)/2) + sinh A sinh B (1 - cos t), and 1 - cos t is half the squared chord.

    Args:
        x: points [* d].
        y: points [* d].
        curvature: c, broadcasts against [*].
        eps: distances are at least acosh(1 + eps)/sqrt(c).

    Returns:
        Distances [*].
    """
    radius_x, radius_y = scaled_norm(x, curvature), scaled_norm(y, curvature)
    coshm1 = radial_coshm1(radius_x, radius_y).squeeze(-1) + (radius_x * radius_y).squeeze(-1) * squared_chord(x, y) / 2
    return acosh1p(coshm1.clamp(min=eps)) / curvature.sqrt()


def pairwise_distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Geodesic distances of each x to each y, as `distance`.

    The matrix product runs in float64, because 1 - cos t of close points loses all digits in float32.

    Args:
        x: points [*k b d].
        y: points [*k n d].
        curvature: c, broadcasts against [*k b].
        eps: distances are at least acosh(1 + eps)/sqrt(c).

    Returns:
        Distances [*k b n].
    """
    radius_x, radius_y = scaled_norm(x, curvature), scaled_norm(y, curvature)
    one_minus_cos = (1 - pairwise_cosine(x, y)).to(x.dtype)
    coshm1 = radial_coshm1(radius_x, radius_y.mT) + radius_x * radius_y.mT * one_minus_cos
    return acosh1p(coshm1.clamp(min=eps)) / curvature[..., None].sqrt()


def pairwise_inner(x: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
    """Lorentzian inner products of each x with each y, by which the released evaluations rank candidates.

        <x, y> = x . y - x_t y_t      MERU eq. 1

    Args:
        x: points [*k b d].
        y: points [*k n d].
        curvature: c, broadcasts against [*k b] and [*k n].

    Returns:
        Inner products [*k b n], larger for closer points: -cosh(sqrt(c) d)/c at the distance d, so at most -1/c.
    """
    return x @ y.mT - time(x, curvature)[..., None] * time(y, curvature)[..., None, :]


def inner_coordinates(x: Tensor, curvature: Tensor, sign: int) -> Tensor:
    """Coordinates of points: the space components and `sign` times the time component.

    The Euclidean inner product of coordinates with sign -1 and coordinates with sign 1 is the Lorentzian one.

    Args:
        x: points [* d].
        curvature: c, broadcasts against [*].
        sign: -1 for queries, 1 for candidates.

    Returns:
        Coordinates [* d+1].
    """
    return torch.cat([x, sign * time(x, curvature)[..., None]], -1)


def time(x: Tensor, curvature: Tensor) -> Tensor:
    """Time components [*] of points [* d]."""
    return (1 / curvature + x.square().sum(-1)).sqrt()


def half_aperture(apex: Tensor, curvature: Tensor, min_radius: float = 0.1, eps: float = EPS) -> Tensor:
    """Half-apertures [*] of the entailment cones at `apex` [* d], in radians.

        asin(2 K / (sqrt(c)|x|))      MERU eq. 10; HyCoCLIP eq. 7

    Args:
        apex: points [* d].
        curvature: c, broadcasts against [*].
        min_radius: K. For sqrt(c)|x| < 2 K the formula is undefined, and the cone is a half-space.
        eps: half-apertures are at most pi/2 - acos(1 - eps).

    Returns:
        Angles [*].
    """
    radius = scaled_norm(apex, curvature).squeeze(-1) + eps
    one_minus_sin = ((radius - 2 * min_radius) / radius).clamp(min=eps)
    return torch.atan2(1 - one_minus_sin, (one_minus_sin * (2 - one_minus_sin)).sqrt())


def exterior_angle(apex: Tensor, point: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Exterior angles [*] at `apex` [* d] towards `point` [* d], in radians.

    The exterior angle lies between the ray from the origin through the apex and the geodesic from the apex to the
    point.

        acos( (y_t + x_t c <x, y>) / (|x| sqrt((c <x, y>)^2 - 1)) )      MERU eq. 11

    In the plane of the origin, x and y, the geodesic leaves x in the direction (outward, sideways) =
    (sinh(B - A) - cosh A sinh B (1 - cos t), sinh B sin t), a vector whose length is the sinh of the scaled distance;
    the angle is its atan2. A, B and t are those of `distance`.

    Args:
        apex: points [* d].
        point: points [* d].
        curvature: c, broadcasts against [*].
        eps: limits the angles to [acos(1 - eps), pi - acos(1 - eps)].

    Returns:
        Angles [*]; pi/2, where the formula is undefined, for equal points and for an apex at the origin.
    """
    return angle_of_polar(*polar(apex, point), curvature, eps)


def pairwise_exterior_angle(apexes: Tensor, points: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Exterior angles at each apex towards each point, in radians, as `exterior_angle`.

    The cosines are a matrix product in float64.

    Args:
        apexes: points [*k b d].
        points: points [*k n d].
        curvature: c, broadcasts against [*k b].
        eps: as in `exterior_angle`.

    Returns:
        Angles [*k b n].
    """
    dtype, cosine = apexes.dtype, pairwise_cosine(apexes, points).clamp(-1, 1)
    norm, norm_point = Norm.apply(apexes).to(dtype), Norm.apply(points).to(dtype).mT
    return angle_of_polar(norm, norm_point, (1 - cosine).to(dtype), (1 + cosine).to(dtype), curvature[..., None], eps)


def angle_of_polar(
    norm: Tensor, norm_point: Tensor, one_minus_cos: Tensor, one_plus_cos: Tensor, curvature: Tensor, eps: float
) -> Tensor:
    """Exterior angles [*] from the polar coordinates of apexes and points that `polar` returns."""
    radius_x, radius_y = (curvature.sqrt() * n for n in (norm, norm_point))
    outward = (radius_y.asinh() - radius_x.asinh()).sinh() - (1 + radius_x**2).sqrt() * radius_y * one_minus_cos
    sideways2 = radius_y**2 * one_minus_cos * one_plus_cos
    length2 = sideways2 + outward**2
    floored2 = length2.clamp(min=eps)
    # The released code adds eps to the denominator |x| sinh D, which makes the cosine slightly smaller. Adding the
    # difference to the sideways component has the same effect on the angle.
    missing2 = norm**2 * (floored2 - length2) + eps * (2 * norm * floored2.sqrt() + eps)
    angle = torch.atan2((norm**2 * sideways2 + missing2).sqrt(), norm * outward)
    margin = 2 * math.asin(math.sqrt(eps / 2))  # acos(1 - eps)
    return angle.clamp(min=margin, max=math.pi - margin)


def scaled_norm(x: Tensor, curvature: Tensor) -> Tensor:
    """sqrt(c)|x| [* 1] of points [* d]."""
    norm: Tensor = Norm.apply(x)
    return curvature.sqrt()[..., None] * norm.to(x.dtype)


class Norm(torch.autograd.Function):
    """|x| [* 1] in float64, with the gradient x / |x|, which is 0 at the origin.

    The norm is float64, because the squares of numbers above 2e19 overflow in float32. The saved tensor is the returned
    one, so that double backward works.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
        ctx.save_for_backward(x, norm)
        return norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, norm = ctx.saved_tensors
        return torch.where(norm > 0, grad / norm, 0.0).to(x.dtype) * x


def direction(x: Tensor) -> Tensor:
    """x / |x| [* d], and 0 at the origin."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def pairwise_cosine(x: Tensor, y: Tensor) -> Tensor:
    """Cosines [*k b n] in float64 of the angles at the origin between each x [*k b d] and each y [*k n d]."""
    return direction(x.double()) @ direction(y.double()).mT


def squared_chord(x: Tensor, y: Tensor) -> Tensor:
    """Squared Euclidean distances [*] between the directions of x and y: 2 - 2 cos t.

    Computed in float64, because sinh A and sinh B amplify the rounding error of directions, 1e-7 in float32.
    """
    return (direction(x.double()) - direction(y.double())).square().sum(-1).to(x.dtype)


def polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """|x|, |y|, 1 - cos t and 1 + cos t, each [*]: polar coordinates in the plane of x, y and the origin.

    For float32 points the cosine is computed from an inner product in float64, which is cheaper than the difference of
    directions. Its error, 1e-8 of the angle, is smaller than the error from rounding the points to float32.
    """
    if x.dtype == torch.float64:
        one_minus = squared_chord(x, y) / 2
        return x.norm(dim=-1), y.norm(dim=-1), one_minus, 2 - one_minus
    norm_x, norm_y, product = NormsAndProduct.apply(*torch.broadcast_tensors(x, y))
    lengths = (norm_x * norm_y).clamp(min=torch.finfo(torch.float64).tiny)
    cosine = (product / lengths).clamp(-1, 1)
    return norm_x.to(x.dtype), norm_y.to(x.dtype), (1 - cosine).to(x.dtype), (1 + cosine).to(x.dtype)


class NormsAndProduct(torch.autograd.Function):
    """|x|, |y| and x . y, each [*] in float64, of points [* d] in a lower precision.

    The backward pass computes each gradient, a x + b y, in one step. Autograd would store the points in float64 for
    each of the three operations.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x64, y64 = x.double(), y.double()
        norm_x, norm_y = x64.norm(dim=-1), y64.norm(dim=-1)
        ctx.save_for_backward(x, y, norm_x, norm_y)
        return norm_x, norm_y, torch.linalg.vecdot(x64, y64)

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_y: Tensor, grad_product: Tensor) -> tuple[Tensor, Tensor]:
        x, y, norm_x, norm_y = ctx.saved_tensors
        x64, y64 = x.double(), y.double()
        by_product = grad_product[..., None]
        by_norm_x, by_norm_y = (
            torch.where(norm > 0, grad / norm, 0.0)[..., None] for grad, norm in ((grad_x, norm_x), (grad_y, norm_y))
        )
        return (
            (by_norm_x * x64).addcmul_(by_product, y64).to(x.dtype),
            (by_norm_y * y64).addcmul_(by_product, x64).to(y.dtype),
        )


def radial_coshm1(radius_x: Tensor, radius_y: Tensor) -> Tensor:
    """cosh(A - B) - 1 of two points on one ray from the origin, from their scaled norms sinh A and sinh B."""
    return 2 * ((radius_x.asinh() - radius_y.asinh()) / 2).sinh().square()


def acosh1p(coshm1: Tensor) -> Tensor:
    """acosh(1 + coshm1), computed without the sum 1 + coshm1, which rounds to 1 for small coshm1.

    Args:
        coshm1: numbers from 0 on, of any shape. The derivative at 0 is infinite.

    Returns:
        Numbers of the same shape.
    """
    return torch.log1p(coshm1 + (coshm1 * (coshm1 + 2)).sqrt())
