"""The Poincare ball of curvature -c, c > 0: points with c|x|^2 < 1 (PoinCLIP, with its formulas made consistent).

`docs/poincare.md` derives what stands here from what the paper prints. Shapes as in `lorentz`: any leading axes, then
d; `curvature` broadcasts against the leading axes. The isometry from Lorentz space components is
p = x / (1 + sqrt(1 + c|x|^2)), and every function agrees with `lorentz` through it.
"""

import torch
from torch import Tensor

from trainer.geometry.lorentz import direction, scaled_norm
from trainer.geometry.types import Lift

RIM = 1e-5  # points stay within (1 - RIM)/sqrt(c): float32 cannot tell nearer ones from the rim
TINY = 1e-8


def mobius_add(x: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
    """x (+) y.

    [(1 + 2c x.y + c|y|^2) x + (1 - c|x|^2) y] / (1 + 2c x.y + c^2 |x|^2 |y|^2)      PoinCLIP eq. 5 with K = -c
    """
    c = curvature[..., None]
    dot, x2, y2 = ((a * b).sum(-1, keepdim=True) for a, b in ((x, y), (x, x), (y, y)))
    return ((1 + 2 * c * dot + c * y2) * x + (1 - c * x2) * y) / (1 + 2 * c * dot + c**2 * x2 * y2)


def exp_map0(tangent: Tensor, curvature: Tensor, lift: Lift = "conformal") -> Tensor:
    """From the tangent space at the origin into the ball.

        tanh(sqrt(c)|v|) v / (sqrt(c)|v|)      PoinCLIP eq. 3, metric factor 2 at the origin ("conformal")

    There the distance to the origin is 2|v|. "isometric" halves the argument and has distance |v|: MERU's map seen
    through the isometry.
    """
    radius = scaled_norm(tangent, curvature)
    reach = (radius if lift == "conformal" else radius / 2).tanh().clamp(max=1 - RIM)
    return reach / radius.clamp(min=TINY) * tangent


def log_map0(point: Tensor, curvature: Tensor, lift: Lift = "conformal") -> Tensor:
    """Inverse of `exp_map0`: artanh(sqrt(c)|p|) p / (sqrt(c)|p|)      PoinCLIP eq. 4."""
    radius = scaled_norm(point, curvature)
    scale = 1 if lift == "conformal" else 2
    return scale * radius.clamp(min=TINY, max=1 - RIM).atanh() / radius.clamp(min=TINY) * point


def distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float = TINY) -> Tensor:
    """Geodesic distance of points one by one, leading axes broadcast.

        (2/sqrt(c)) artanh(sqrt(c) |(-x) (+) y|)  =  (2/sqrt(c)) asinh(u)      PoinCLIP eq. 2
        u^2 = c |x - y|^2 / ((1 - c|x|^2)(1 - c|y|^2))

    The second form keeps its digits near the rim. u^2 is at least eps, where its root has a slope.
    """
    u2 = curvature * (x - y).square().sum(-1) / (rim_gap(x, curvature) * rim_gap(y, curvature)).squeeze(-1)
    return 2 * u2.clamp(min=eps).sqrt().asinh() / curvature.sqrt()


def pairwise_distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float = TINY) -> Tensor:
    """Distance of every x [*k b d] to every y [*k n d]: [*k b n]. `curvature` broadcasts with [*k b].

    The squared distances come from one matrix product, in float64: they are differences of nearly equal numbers.
    """
    c = curvature[..., None]
    x64, y64 = x.double(), y.double()
    norms = x64.square().sum(-1, keepdim=True) + y64.square().sum(-1, keepdim=True).mT
    squared = (norms - 2 * x64 @ y64.mT).to(x.dtype)
    u2 = c * squared / (rim_gap(x, curvature) * rim_gap(y, curvature).mT)
    return 2 * u2.clamp(min=eps).sqrt().asinh() / c.sqrt()


def half_aperture(apex: Tensor, curvature: Tensor, min_radius: float = 0.1, eps: float = TINY) -> Tensor:
    """Half-aperture of the entailment cone at `apex`, in radians.

        asin(K (1 - c|x|^2) / (sqrt(c)|x|))      PoinCLIP eq. 8, K is `min_radius`

    Near the origin, where the argument exceeds 1, the cone is a half space.
    """
    radius = scaled_norm(apex, curvature).squeeze(-1) + eps
    rim = rim_gap(apex, curvature).squeeze(-1)
    one_minus_sin = ((radius - min_radius * rim) / radius).clamp(min=eps)
    return torch.atan2(1 - one_minus_sin, (one_minus_sin * (2 - one_minus_sin)).sqrt())


def exterior_angle(apex: Tensor, point: Tensor, curvature: Tensor, eps: float = TINY) -> Tensor:
    """Angle at `apex` between the ray away from the origin and the geodesic to `point`, in radians.

        acos[ (x.y (1 + c|x|^2) - |x|^2 (1 + c|y|^2)) / (|x| |x - y| sqrt(1 + c^2 |x|^2 |y|^2 - 2c x.y)) ]
                                                                                          PoinCLIP eq. 7 for any c

    The geodesic leaves x along (-x) (+) y; its parts along x and across give the same angle by atan2. Equal points
    have no angle; with eps it is pi/2.
    """
    c = curvature
    unit = direction(apex)
    step = point - apex
    along = (step * unit).sum(-1)
    across2 = (step - along[..., None] * unit).square().sum(-1)
    radius = apex.norm(dim=-1)
    outward = along * (1 - c * radius * (radius + along)) - c * radius * across2
    sideways2 = rim_gap(apex, curvature).squeeze(-1) ** 2 * across2
    # eps**2 keeps the slope of the root finite where a point lies straight ahead or behind.
    return torch.atan2((sideways2 + eps**2).sqrt(), outward)


def rim_gap(x: Tensor, curvature: Tensor) -> Tensor:
    """1 - c|x|^2, with a last axis of 1, at least what `RIM` leaves."""
    radius = scaled_norm(x, curvature)
    return ((1 - radius) * (1 + radius)).clamp(min=RIM)
