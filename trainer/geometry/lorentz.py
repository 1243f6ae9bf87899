"""The Lorentz model of hyperbolic space, curvature -c with c > 0.

A point is kept by its space components x; time is sqrt(1/c + |x|^2), so <x, x> = -1/c with <x, y> = x . y - x_t y_t
(MERU, section 2). Shapes: any leading axes, then d; `curvature` broadcasts against the leading axes, so one set of
functions serves one space (a scalar) and k factors ([k b d] with a curvature [k 1]).

Formulas are the papers', rearranged around A = asinh(sqrt(c)|x|), the distance to the origin in units of 1/sqrt(c),
and the chord between directions. As printed they subtract numbers of the size of c x_t y_t from each other, which
leaves nothing in float32 far from the origin, close to it, and between neighbours. `eps` sits where the released code
has it, for its floors are part of the losses: a distance is at least acosh(1 + eps)/sqrt(c), an angle stays
acos(1 - eps) away from 0 and pi, a half-aperture from pi/2. MERU and HyCoCLIP have 1e-8, PHyCLIP 1e-6.
"""

import math
from typing import Any

import torch
from torch import Tensor

MAX_SINH = 2.0**15  # of sqrt(c)|x| after the exponential map: half precision holds no more
EPS = 1e-8


def exp_map0(tangent: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """From the tangent space at the origin into the space.

    sinh(sqrt(c)|v|) v / (sqrt(c)|v|)      MERU eq. 9

    Tangents longer than asinh(2^15)/sqrt(c) keep their direction and land at the limit.
    """
    radius = scaled_norm(tangent, curvature)
    reach = radius.clamp(min=eps, max=math.asinh(MAX_SINH))
    return reach.sinh() / radius.clamp(min=eps) * tangent


def log_map0(point: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Inverse of `exp_map0`: asinh(sqrt(c)|x|) x / (sqrt(c)|x|)      MERU eq. 8 at the origin."""
    radius = scaled_norm(point, curvature)
    return radius.clamp(min=eps).asinh() / radius.clamp(min=eps) * point


def distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Geodesic distance of points one by one, leading axes broadcast.

        acosh(-c <x, y>) / sqrt(c)      MERU eq. 4

    With A, B the scaled distances to the origin and t the angle between x and y at the origin,
    -c <x, y> - 1 = 2 sinh^2((A - B)/2) + sinh A sinh B (1 - cos t), and 1 - cos t is half the squared chord.
    """
    radius_x, radius_y = scaled_norm(x, curvature), scaled_norm(y, curvature)
    gap = radial_gap(radius_x, radius_y).squeeze(-1) + (radius_x * radius_y).squeeze(-1) * squared_chord(x, y) / 2
    return acosh1p(gap.clamp(min=eps)) / curvature.sqrt()


def pairwise_distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Distance of every x [*k b d] to every y [*k n d]: [*k b n]. `curvature` broadcasts with [*k b].

    The one matrix product runs in float64: 1 - cos t of neighbours has no digits left in float32.
    """
    radius_x, radius_y = scaled_norm(x, curvature), scaled_norm(y, curvature)
    one_minus_cos = (1 - direction(x.double()) @ direction(y.double()).mT).to(x.dtype)
    gap = radial_gap(radius_x, radius_y.mT) + radius_x * radius_y.mT * one_minus_cos
    return acosh1p(gap.clamp(min=eps)) / curvature[..., None].sqrt()


def pairwise_inner(x: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
    """<x, y> of every x [*k b d] with every y [*k n d]: [*k b n]. What the released evaluations rank by."""
    return x @ y.mT - time(x, curvature)[..., None] * time(y, curvature)[..., None, :]


def time(x: Tensor, curvature: Tensor) -> Tensor:
    """The time component, [*]."""
    return (1 / curvature + x.square().sum(-1)).sqrt()


def half_aperture(apex: Tensor, curvature: Tensor, min_radius: float = 0.1, eps: float = EPS) -> Tensor:
    """Half-aperture of the entailment cone at `apex`, in radians.

        asin(2 K / (sqrt(c)|x|))      MERU eq. 10; HyCoCLIP eq. 7

    K is `min_radius`. Where sqrt(c)|x| <= 2 K the formula has no value; the cone is a half space, pi/2.
    """
    radius = scaled_norm(apex, curvature).squeeze(-1) + eps
    one_minus_sin = ((radius - 2 * min_radius) / radius).clamp(min=eps)
    return torch.atan2(1 - one_minus_sin, (one_minus_sin * (2 - one_minus_sin)).sqrt())


def exterior_angle(apex: Tensor, point: Tensor, curvature: Tensor, eps: float = EPS) -> Tensor:
    """Angle at `apex` between the ray away from the origin and the geodesic to `point`, in radians.

        acos( (y_t + x_t c <x, y>) / (|x| sqrt((c <x, y>)^2 - 1)) )      MERU eq. 11

    In the plane of the origin, x and y the geodesic leaves x along (outward, sideways) = (sinh(B - A) - cosh A sinh B
    (1 - cos t), sinh B sin t), a vector of length sinh of the scaled distance; the angle is its atan2. Equal points
    have no angle; with eps it is pi/2.
    """
    norm, norm_point, one_minus_cos, one_plus_cos = polar(apex, point)
    radius_x, radius_y = (curvature.sqrt() * n for n in (norm, norm_point))
    outward = (radius_y.asinh() - radius_x.asinh()).sinh() - (1 + radius_x**2).sqrt() * radius_y * one_minus_cos
    sideways2 = radius_y**2 * one_minus_cos * one_plus_cos
    length2 = sideways2 + outward**2
    floored2 = length2.clamp(min=eps)
    # The released code adds eps to |x| sinh D, so cosines are a little smaller; what they lack is sideways.
    missing2 = norm**2 * (floored2 - length2) + eps * (2 * norm * floored2.sqrt() + eps)
    angle = torch.atan2((norm**2 * sideways2 + missing2).sqrt(), norm * outward)
    margin = 2 * math.asin(math.sqrt(eps / 2))  # acos(1 - eps)
    return angle.clamp(min=margin, max=math.pi - margin)


def scaled_norm(x: Tensor, curvature: Tensor) -> Tensor:
    """sqrt(c)|x|, with a last axis of 1."""
    norm: Tensor = Norm.apply(x)
    return curvature.sqrt()[..., None] * norm.to(x.dtype)


class Norm(torch.autograd.Function):
    """|x| in float64 with a last axis of 1, and its gradient in one step: x / |x|, and 0 at the origin.

    In float32 squares of 2e19 are infinite. It is handed out as it is saved, or its own gradient would be lost.
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
    """x / |x|, and 0 for the origin."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def squared_chord(x: Tensor, y: Tensor) -> Tensor:
    """Squared distance of the directions of x and y: 2 - 2 cos t.

    In float64 on the way: directions rounded to float32 are 1e-7 off, which sinh A and sinh B multiply.
    """
    return (direction(x.double()) - direction(y.double())).square().sum(-1).to(x.dtype)


def polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """|x|, |y|, 1 - cos t and 1 + cos t, [*] each: all that the plane of x, y and the origin knows of them.

    Of points shorter than float64 the cosine comes from a product in float64, less work than a difference: what it
    loses, 1e-8 of the angle, is less than the points' own rounding turns them by.
    """
    if x.dtype == torch.float64:
        one_minus = squared_chord(x, y) / 2
        return x.norm(dim=-1), y.norm(dim=-1), one_minus, 2 - one_minus
    norm_x, norm_y, product = NormsAndProduct.apply(*torch.broadcast_tensors(x, y))
    lengths = (norm_x * norm_y).clamp(min=torch.finfo(torch.float64).tiny)
    cosine = (product / lengths).clamp(-1, 1)
    in_plane = [value.to(x.dtype) for value in (norm_x, norm_y, 1 - cosine, 1 + cosine)]
    return in_plane[0], in_plane[1], in_plane[2], in_plane[3]


class NormsAndProduct(torch.autograd.Function):
    """|x|, |y| and x . y in float64 of shorter points [* d], and gradients a x + b y in one step.

    Left to autograd each step would read and keep the points in float64.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        long_x, long_y = x.double(), y.double()
        norm_x, norm_y = long_x.norm(dim=-1), long_y.norm(dim=-1)
        ctx.save_for_backward(x, y, norm_x, norm_y)
        return norm_x, norm_y, torch.linalg.vecdot(long_x, long_y)

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_y: Tensor, grad_product: Tensor) -> tuple[Tensor, Tensor]:
        x, y, norm_x, norm_y = ctx.saved_tensors
        long_x, long_y = x.double(), y.double()
        across = grad_product[..., None]
        along_x, along_y = (
            torch.where(norm > 0, grad / norm, 0.0)[..., None] for grad, norm in ((grad_x, norm_x), (grad_y, norm_y))
        )
        return (
            (along_x * long_x).addcmul_(across, long_y).to(x.dtype),
            (along_y * long_y).addcmul_(across, long_x).to(y.dtype),
        )


def radial_gap(radius_x: Tensor, radius_y: Tensor) -> Tensor:
    """cosh(A - B) - 1 for two points on one ray, from sinh A and sinh B."""
    return 2 * ((radius_x.asinh() - radius_y.asinh()) / 2).sinh().square()


def acosh1p(gap: Tensor) -> Tensor:
    """acosh(1 + gap) without the sum, whose rounding would swallow a small gap."""
    return torch.log1p(gap + (gap * (gap + 2)).sqrt())
