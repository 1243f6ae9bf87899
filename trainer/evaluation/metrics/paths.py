"""Paths between a point and the root, or between two points, and the nearest candidates of their points.

Shapes: s steps of a path, n candidates, k factors, d width of a point; [*k s d] is [s d], or [k s d] with factors.
"""

from collections.abc import Iterable
from typing import Final, Literal

import torch
from torch import Tensor

from trainer.evaluation.metrics.ranking import Score
from trainer.evaluation.metrics.spaces import Ball, Flat, Lorentz, Space, WithCones, ball_to_lorentz
from trainer.geometry.types import EPS

PathRule = Literal["paper", "released", "geodesic"]
"""Path between two points: straight in the tangent space at the root, as HyCoCLIP's eq. 15; the same with the target
itself in place of its tangent vector, as in the released code of HyCoCLIP and PHyCLIP, which ends beyond the target;
the geodesic."""

BLOCK: Final = 2**22
"""Maximum number of pairs of steps and candidates that are compared at once."""


def path_to_root(space: Space, point: Tensor, steps: int) -> Tensor:
    """`steps` equally spaced points [*k s d] from `point` [*k 1 d] to the root; both ends are included.

    The vectors w log_0(point) + (1 - w) log_0(root), mapped back (MERU, appendix D). In a product of factors, the steps
    of all factors have the same w.
    """
    weights = torch.linspace(1, 0, steps, dtype=torch.float64, device=point.device)
    root = space.log_map0(space.root(point))
    return space.exp_map0(torch.lerp(root, space.log_map0(point), weights[:, None]))


def path_between(space: Space, start: Tensor, end: Tensor, steps: int, rule: PathRule = "paper") -> Tensor:
    """`steps` equally spaced points [*k s d] from `start` to `end` [*k 1 d]; both ends are included."""
    weights = torch.linspace(0, 1, steps, dtype=torch.float64, device=start.device)
    if rule == "geodesic":
        return space.geodesic(start, end, weights)
    target = space.log_map0(end) if rule == "paper" else end.double()
    return space.exp_map0(torch.lerp(space.log_map0(start), target, weights[:, None]))


def entails_steps(space: Lorentz | Ball | Flat, apexes: Tensor, steps: Tensor, min_radius: float = 0.1) -> Tensor:
    """Mask [s n], True if the cone at an apex [*k n d] contains a step [*k s d]; with factors, in all factors."""
    inside = cone_margins(space, apexes, steps, min_radius) <= 0
    return inside if inside.ndim == 2 else inside.all(0)


def cone_margins(space: Lorentz | Ball | Flat, apexes: Tensor, steps: Tensor, min_radius: float = 0.1) -> Tensor:
    """Exterior angles minus half-apertures [*k s n], in radians, of each step [*k s d] and the cone at each apex [*k n d].

    MERU eq. 10 and 11, evaluated in float64 from inner products, with the limits of the released code. The ball is
    compared on the hyperboloid: the isometry keeps both angles. Flat space has the angles of `geometry.euclidean`.
    """
    if isinstance(space, Flat):
        return flat_cone_margins(apexes.double(), steps.double(), min_radius)
    c = space.curvature.double()
    x, y = (ball_to_lorentz(p, c) if isinstance(space, Ball) else p.double() for p in (apexes, steps))
    norm, time_x, time_y = x.norm(dim=-1), (1 / c + x.square().sum(-1)).sqrt(), (1 / c + y.square().sum(-1)).sqrt()
    sine = (2 * min_radius / (c.sqrt() * norm + EPS)).clamp(max=1 - EPS)
    c_inner = c[..., None] * (y @ x.mT - time_y[..., None] * time_x[..., None, :])
    length = norm[..., None, :] * (c_inner.square() - 1).clamp(min=EPS).sqrt() + EPS
    cosine = ((time_y[..., None] + time_x[..., None, :] * c_inner) / length).clamp(-1 + EPS, 1 - EPS)
    return cosine.acos() - sine.asin()[..., None, :]


def flat_cone_margins(x: Tensor, y: Tensor, min_radius: float) -> Tensor:
    """`cone_margins` [s n] in flat space, from apexes [n d] and steps [s d]."""
    norm, inner = x.norm(dim=-1), y @ x.T
    length = norm * (norm**2 - 2 * inner + y.square().sum(-1, keepdim=True)).clamp(min=0).sqrt() + EPS
    cosine = ((inner - norm**2) / length).clamp(-1 + EPS, 1 - EPS)
    return cosine.acos() - (min_radius / (norm + EPS)).clamp(max=1 - EPS).asin()


def nearest(
    score: Score, space: Space, steps: Tensor, pool: Tensor, can_entail: Tensor | None = None, min_radius: float = 0.1
) -> Tensor:
    """Index [s] of the best candidate in `pool` [*k n d] for each step [*k s d]; n stands for the root.

    With `can_entail` [n], only the root and the candidates whose cones contain the step are compared, those of
    `can_entail` alone (MERU, appendix D). Spaces without cones ignore it. Equal scores go to the first candidate, and
    to the root last. Candidates are compared in blocks.
    """
    steps = steps.to(pool)
    at_once = max(1, BLOCK // (len(steps) if steps.ndim == 3 else 1) // max(1, steps.shape[-2]))
    best = score(steps, space.root(steps)).squeeze(1)
    chosen = torch.full((steps.shape[-2],), pool.shape[-2], dtype=torch.int64, device=pool.device)
    is_root = torch.ones_like(chosen, dtype=torch.bool)
    for first in range(0, pool.shape[-2], at_once):
        part = slice(first, min(first + at_once, pool.shape[-2]))
        scores = score(steps, pool[..., part, :])
        if can_entail is not None and isinstance(space, WithCones):
            allowed = entails_steps(space, pool[..., part, :], steps, min_radius) & can_entail[part]
            scores = scores.masked_fill(~allowed, -torch.inf)
        value, index = scores.max(1)
        better = (value > best) | (is_root & (value == best))
        best, is_root = torch.where(better, value, best), is_root & ~better
        chosen = torch.where(better, index + first, chosen)
    return chosen.cpu()


def distinct(indices: Iterable[int]) -> list[int]:
    """Indices without repetitions, in the order of their first appearance."""
    return list(dict.fromkeys(indices))
