"""The space of a model's points, with the maps that analyses need. All results are float64.

Shapes: any leading axes *, d width of a point; with k factors the first axis is k. `curvature` is c > 0, for points
[*k n d]: [], or [k 1] for k factors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.geometry import lorentz, poincare
from trainer.geometry.types import Lift
from trainer.models.cones import Cones
from trainer.models.dual_encoder import DualEncoder
from trainer.models.euclip import EuCLIP
from trainer.models.meru import MERU
from trainer.models.phyclip import PHyCLIP
from trainer.models.poinclip import PoinCLIP


class WithCones:
    """A space whose root is the origin and whose points have entailment cones. Tangent vectors are those at the root."""

    def root(self, like: Tensor) -> Tensor:
        """The root as points [*k 1 d] of the layout of `like` [*k n d]."""
        return torch.zeros_like(like[..., :1, :])


@dataclass(frozen=True)
class Lorentz(WithCones):
    """The hyperboloid of curvature -c, or a product of k of them; its root is the origin."""

    curvature: Tensor

    def log_map0(self, points: Tensor) -> Tensor:
        """Tangent vectors [*k n d] of points."""
        return lorentz.log_map0(points.double(), self.curvature.double())

    def exp_map0(self, tangents: Tensor) -> Tensor:
        """Points [*k n d] of tangent vectors."""
        return lorentz.exp_map0(tangents.double(), self.curvature.double())

    def radius(self, points: Tensor) -> Tensor:
        """Distances [*k n] of points from the root, by factor."""
        return self.log_map0(points).norm(dim=-1)

    def geodesic(self, start: Tensor, end: Tensor, weights: Tensor) -> Tensor:
        """Points [*k s d] at the shares `weights` [s] of the geodesics from `start` to `end` [*k 1 d].

        sinh((1 - t) D) / sinh(D) x + sinh(t D) / sinh(D) y, with the scaled distance D of x and y
        """
        start, end, t = start.double(), end.double(), weights.double()[:, None]
        c = self.curvature.double()
        scaled = (lorentz.distance(start, end, c) * c.sqrt())[..., None]  # at least acosh(1 + eps)
        parts = ((share * scaled).sinh() / scaled.sinh() * point for share, point in ((1 - t, start), (t, end)))
        return sum(parts, torch.zeros_like(start))


@dataclass(frozen=True)
class Ball(WithCones):
    """The Poincaré ball of curvature -c; its root is the origin."""

    curvature: Tensor
    lift: Lift = "conformal"

    def log_map0(self, points: Tensor) -> Tensor:
        return poincare.log_map0(points.double(), self.curvature.double(), self.lift)

    def exp_map0(self, tangents: Tensor) -> Tensor:
        return poincare.exp_map0(tangents.double(), self.curvature.double(), self.lift)

    def radius(self, points: Tensor) -> Tensor:
        return poincare.log_map0(points.double(), self.curvature.double(), "isometric").norm(dim=-1)

    def geodesic(self, start: Tensor, end: Tensor, weights: Tensor) -> Tensor:
        c = self.curvature.double()
        points = Lorentz(c).geodesic(ball_to_lorentz(start, c), ball_to_lorentz(end, c), weights)
        return lorentz_to_ball(points, c)


@dataclass(frozen=True)
class Flat(WithCones):
    """Euclidean space; its root is the origin. Points are their own tangent vectors."""

    def log_map0(self, points: Tensor) -> Tensor:
        return points.double()

    def exp_map0(self, tangents: Tensor) -> Tensor:
        return tangents.double()

    def radius(self, points: Tensor) -> Tensor:
        return points.double().norm(dim=-1)

    def geodesic(self, start: Tensor, end: Tensor, weights: Tensor) -> Tensor:
        return torch.lerp(start.double(), end.double(), weights.double()[:, None])


@dataclass(frozen=True)
class Sphere:
    """Unit vectors with a root vector [d], the mean direction of the data (MERU, appendix D)."""

    center: Tensor

    def log_map0(self, points: Tensor) -> Tensor:
        """The points themselves: CLIP interpolates its vectors linearly."""
        return points.double()

    def exp_map0(self, tangents: Tensor) -> Tensor:
        return F.normalize(tangents.double(), dim=-1)

    def root(self, like: Tensor) -> Tensor:
        return self.center.to(like).expand_as(like[..., :1, :])

    def radius(self, points: Tensor) -> Tensor:
        """1 - cosine of points and root."""
        return 1 - points.double() @ self.center.double()

    def geodesic(self, start: Tensor, end: Tensor, weights: Tensor) -> Tensor:
        """Arcs of great circles."""
        start, end, t = start.double(), end.double(), weights.double()[:, None]
        angle = 2 * torch.asin(((start - end).norm(dim=-1, keepdim=True) / 2).clamp(1e-12, 1))
        parts = ((share * angle).sin() / angle.sin() * point for share, point in ((1 - t, start), (t, end)))
        return F.normalize(sum(parts, torch.zeros_like(start)), dim=-1)


Space = Lorentz | Ball | Flat | Sphere


def space_of(model: DualEncoder, center: Tensor | None = None) -> Space:
    """The space of a model's lifted points. `center` [d] is the root of CLIP: its mean direction.

    Raises ValueError for a model without an origin if there is no `center`.
    """
    if isinstance(model, MERU):
        return Lorentz(model.curvature().detach())
    if isinstance(model, PoinCLIP):
        return Ball(model.curv.detach().exp(), model.config.lift)
    if isinstance(model, EuCLIP):
        return Flat()
    if center is None:
        raise ValueError(f"{type(model).__name__} has no origin; give its center")
    return Sphere(F.normalize(center.double(), dim=-1))


def factor_points(model: DualEncoder, points: Tensor) -> Tensor:
    """Points [k n d] of a hyperbolic model in the unit Poincaré balls of its k factors, float64; k is 1 without factors.

    Distances there are those of the space times sqrt(c). Raises ValueError for a model without hyperbolic space.
    """
    if isinstance(model, MERU):
        scaled = points.double() * model.curvature().detach().double().sqrt()[..., None]
        unit = lorentz_to_ball(scaled, torch.ones((), dtype=torch.float64, device=points.device))
        return unit if isinstance(model, PHyCLIP) else unit[None]
    if isinstance(model, PoinCLIP):
        return (points.double() * model.curv.detach().double().exp().sqrt())[None]
    raise ValueError(f"{type(model).__name__} has no hyperbolic space")


def lorentz_to_ball(points: Tensor, curvature: Tensor) -> Tensor:
    """Points [* d] of the ball from the space components of points of the hyperboloid: x / (1 + sqrt(1 + c|x|^2))."""
    points = points.double()
    return points / (1 + (1 + curvature[..., None] * points.square().sum(-1, keepdim=True)).sqrt())


def ball_to_lorentz(points: Tensor, curvature: Tensor) -> Tensor:
    """Space components [* d] of points of the hyperboloid from points of the ball: 2p / (1 - c|p|^2)."""
    points = points.double()
    return 2 * points / (1 - curvature[..., None] * points.square().sum(-1, keepdim=True))


# Distances of the points of a model from the root of its space.
#
# Shapes: n points of a group, k factors, d width of a point; [*k n d] is [n d], or [k n d] in a product of factors.

NAMES: Final = {"text": "texts", "image": "images", "box_text": "phrases", "box_image": "boxes"}
"""The names of the groups of points in figures."""


def space_of_points(model: DualEncoder, lifted: Mapping[str, Tensor], root: str = "") -> Space:
    """The space of a model; the root of CLIP is that of the file `root`, or else the mean direction of all points."""
    return space_of(model, center_of(model, list(lifted.values()), root))


def center_of(model: DualEncoder, points: Sequence[Tensor], root: str = "") -> Tensor | None:
    """The root [d] of CLIP, from the file `root` or as the mean of points [n d]; None for a model whose root is the origin.

    Raises UserError for a file that does not hold a vector of the model's width.
    """
    if isinstance(model, Cones):
        return None
    if not root:
        return torch.cat(list(points)).mean(0)
    try:
        found = torch.from_numpy(np.load(root, allow_pickle=False)).to(points[0])
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"root={root} cannot be read: {error}; write it with python -m trainer.analyses.root"
        ) from error
    if found.shape != points[0].shape[-1:]:
        raise UserError(
            f"root={root} has the shape {list(found.shape)}, but points have the width {points[0].shape[-1]}; give the "
            "root of this model"
        )
    return found


def root_rule(model: DualEncoder, points: str, root: str = "") -> str:
    """The root of `center_of`, for the rules of a result."""
    return "origin" if isinstance(model, Cones) else f"root of {root}" if root else f"mean direction of {points}"


def quantity(model: DualEncoder, *, in_metric: bool = False) -> str:
    """The label of an axis with the distances of a model: summed over factors, or as `in_metric` combines them."""
    label = "distance to the origin" if isinstance(model, Cones) else "1 - cosine to the mean direction"
    if not isinstance(model, PHyCLIP):
        return label
    combined = {"l1": "mean", "l2": "root mean square"}[model.config.metric] if in_metric else "sum"
    return f"{label}, {combined} over the factors"


def over_factors(radii: Tensor) -> Tensor:
    """Distances [n] from those by factor, [n] or [k n]: their sum."""
    return radii.sum(0) if radii.ndim == 2 else radii


def root_distances(model: DualEncoder, lifted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Distances [n] of each group of lifted points [*k n d] from the root, float64 on the CPU."""
    space = space_of_points(model, lifted)
    return {name: over_factors(space.radius(points)).cpu() for name, points in lifted.items()}
