"""HoroPCA of texts, images, phrases and boxes in the Poincaré disk (HyCoCLIP, figure 5; PHyCLIP, figure 4).

HyCoCLIP plots 200 pairs with a box each. For PHyCLIP, the factor with the largest mean distance of all points from the
origin is plotted; the paper chooses factors by hand.

Shapes: n points of a group, k factors, d width of a factor.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.analyses.shard_points import HELD_OUT, embed_shards
from trainer.evaluation.metrics.spaces import NAMES, ball_to_lorentz, factor_points, lorentz_to_ball
from trainer.evaluation.plots import draw_disk
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, Figure, TaskOptions, TaskResult, UnsuitableModelError
from trainer.geometry import lorentz
from trainer.geometry.poincare import mobius_add
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.registry import model_name

# HoroPCA: principal directions of hyperbolic data by horospherical projections (Chami et al. 2021).
#
# Points are in the unit Poincaré ball (curvature -1), float64. With time t and space components s of a point on the
# hyperboloid, and unit vectors q as ideal points,
#
#     B_q(x) = log(|q - x|^2 / (1 - |x|^2)) = log(t - s.q)      Busemann function, section 3.1
#
# Shapes: n points, d width of the ball, k components.

ONE: Final = torch.ones((), dtype=torch.float64)
STEPS: Final = 500
LEARNING_RATE: Final = 5e-2
MEAN_STEPS: Final = 5000
MEAN_TOLERANCE: Final = 1e-10
MAX_POINTS: Final = 2000
"""Maximum number of points: the objective compares all pairs."""


@dataclass(frozen=True)
class HoroPCA:
    """The result for n points: `coordinates` are those of the projections in the k-dimensional unit ball."""

    mean: Tensor  # [d] Frechet mean, which is at the origin of the coordinates
    directions: Tensor  # [k d] orthonormal ideal points
    coordinates: Tensor  # [n k]
    explained: float  # mean squared distance of the projections / mean squared distance of the points
    reflected: float  # share of points beyond the hull of the ideal points, whose projections are reflected into it


def horopca(points: Tensor, k: int = 2, steps: int = STEPS) -> HoroPCA:
    """Compute k components of points [n d] in the unit ball.

    The points are translated so that their Frechet mean is the origin; then Adam maximizes the mean squared distance of
    the projections, for k = 1 the variance of the Busemann function (section 4.2). It starts from the principal
    directions in the tangent space at the mean, with the signs that give the largest objective.

    Raises UserError for fewer than two or more than `MAX_POINTS` points, and if k is not between 1 and d.
    """
    if not 2 <= len(points) <= MAX_POINTS:
        raise UserError(f"HoroPCA has {len(points)} points; give between 2 and {MAX_POINTS}")
    if not 1 <= k <= points.shape[1]:
        raise UserError(f"HoroPCA has k={k}; give a number between 1 and the width {points.shape[1]}")
    points = points.detach().double()
    mean = frechet_mean(points)
    centered = ball_to_lorentz(translate(points, -mean), ONE)
    directions = principal_directions(centered, k)
    signs = [torch.tensor(s, dtype=torch.float64)[:, None] for s in product((1.0, -1.0), repeat=k)]
    directions = max((directions * sign for sign in signs), key=lambda q: objective(centered, q).item())
    best, best_value = directions, objective(centered, directions).item()
    raw = directions.clone().requires_grad_()
    optimizer = torch.optim.Adam([raw], lr=LEARNING_RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        value = objective(centered, orthonormal(raw))
        (-value).backward()
        optimizer.step()
        if value.item() > best_value:
            best, best_value = orthonormal(raw.detach()), value.item()
    final = orthonormal(raw.detach())
    if objective(centered, final).item() >= best_value:
        best = final
    projected = project(centered, best)
    spread = mean_squared_distance(centered)
    return HoroPCA(
        mean=mean,
        directions=best,
        coordinates=lorentz_to_ball(projected, ONE),
        explained=(mean_squared_distance(projected) / spread).item() if spread > 0 else 1.0,
        reflected=(is_beyond_hull(centered, best).double().mean().item() if k > 1 else 0.0),
    )


def frechet_mean(points: Tensor) -> Tensor:
    """The point [d] with the least sum of squared distances to points [n d] of the unit ball.

    Gradient descent with the step 1 / (r coth r), r being the largest distance: the inverse of the largest curvature of
    the objective, which guarantees convergence.
    """
    mean = torch.zeros_like(points[0])
    for _ in range(MEAN_STEPS):
        tangents = lorentz.log_map0(ball_to_lorentz(translate(points, -mean), ONE), ONE)
        largest = tangents.norm(dim=-1).max().clamp(min=1e-6)
        step = tangents.mean(0) * (largest.tanh() / largest)
        if step.norm() < MEAN_TOLERANCE:
            break
        moved = lorentz_to_ball(lorentz.exp_map0(step[None], ONE), ONE)
        mean = translate(moved, mean)[0]
    return mean


def translate(points: Tensor, by: Tensor) -> Tensor:
    """Points [n d] of the unit ball after the translation that moves the origin to `by` [d]."""
    return mobius_add(by, points, ONE)


def principal_directions(centered: Tensor, k: int) -> Tensor:
    """Principal directions [k d] of the tangent vectors at the origin, of points of the hyperboloid [n d]."""
    tangents = lorentz.log_map0(centered, ONE)
    # The rows of vh are a basis even if the points span fewer than k dimensions.
    vh = torch.linalg.svd(tangents - tangents.mean(0), full_matrices=len(tangents) < k).Vh
    return vh[:k]


def orthonormal(directions: Tensor) -> Tensor:
    """Orthonormal rows [k d] with the span of `directions`, by Gram-Schmidt; signs are kept."""
    q, r = torch.linalg.qr(directions.T)
    return (q * r.diagonal().sign()).T


def busemann(centered: Tensor, directions: Tensor) -> Tensor:
    """Busemann functions [n k] of points of the hyperboloid [n d] and ideal points [k d], as exp(B) = t - s.q.

    Computed as 1/(t + |s|) + |s|(1 - cos), which does not cancel for points near the ideal point.
    """
    norm = centered.norm(dim=-1, keepdim=True)
    time = (1 + norm.square()).sqrt()
    return 1 / (time + norm) + (norm - centered @ directions.T)


def project(centered: Tensor, directions: Tensor) -> Tensor:
    """Horospherical projections [n k] of points of the hyperboloid [n d], as coordinates along k `directions` [k d].

    The projection y has the Busemann functions of the point, and is in the submanifold spanned by the origin and the
    ideal points. With w = exp(B) and y_k = t - w_k, the condition t^2 = 1 + |y|^2 is

        (k - 1) t^2 - 2 sum(w) t + 1 + |w|^2 = 0

    Of its two solutions, which are reflections in the hull of the ideal points, the one nearer the origin is the
    projection (section 4.1).
    """
    w = busemann(centered, directions)
    total, squares = w.sum(1), w.square().sum(1)
    k = w.shape[1]
    if k == 1:
        return (1 / w - w) / 2
    root = (total.square() - (k - 1) * (1 + squares)).clamp(min=1e-30).sqrt()
    time = (1 + squares) / (total + root)
    return time[:, None] - w


def is_beyond_hull(centered: Tensor, directions: Tensor) -> Tensor:
    """Mask [n] of points on the far side, seen from the origin, of the hull of the ideal points: t < sum of s.q."""
    return (1 + centered.square().sum(-1)).sqrt() < (centered @ directions.T).sum(1)


def objective(centered: Tensor, directions: Tensor) -> Tensor:
    """Variance of the Busemann function for one direction, else the mean squared distance of the projections."""
    if len(directions) == 1:
        return busemann(centered, directions).log().var(unbiased=False)
    return mean_squared_distance(project(centered, directions))


def mean_squared_distance(points: Tensor) -> Tensor:
    """Mean squared distance [] of all pairs of different points [n d] of the hyperboloid.

    With G_ij = cosh d_ij = t_i t_j - s_i.s_j, the derivative of d^2 by G is w = 2 d / sinh d. The gradient is that of
    sum_ij w_ij G_ij with constant w, which needs two matrix products in place of a graph of all pairs.
    """
    n = len(points)
    time = (1 + points.square().sum(-1)).sqrt()
    with torch.no_grad():
        coshm1 = (torch.outer(time, time) - points @ points.T - 1).clamp(min=1e-16)
        sinh = (coshm1 * (coshm1 + 2)).sqrt()
        distances = torch.log1p(coshm1 + sinh).fill_diagonal_(0.0)
        value = distances.square().sum()
        weights = (2 * distances / sinh).fill_diagonal_(0.0)
    linear = time @ weights @ time - (points * (weights @ points)).sum()
    return (value + linear - linear.detach()) / max(1, n * (n - 1))


N_SAMPLES: Final = 200


class DiskPoints(NamedTuple):
    """Points of one factor in the unit ball, in groups."""

    points: Tensor  # [n d]
    groups: dict[str, slice]  # rows of each group
    factor: int
    n_samples: int
    skipped: dict[str, int]


def widest_factor(points: Tensor) -> int:
    """The factor in which points [k n d] of unit balls have the largest mean distance from the origin."""
    return int(points.norm(dim=-1).clamp(max=1 - 1e-12).atanh().mean(1).argmax())


def disk_points(embedder: Embedder, root: Path, options: TaskOptions) -> DiskPoints:
    """Embed samples of held-out shards with their first box.

    Raises MissingFilesError without shards, and UnsuitableModelError for a model without hyperbolic space.
    """
    model = embedder.model
    if not isinstance(model, Hyperbolic):
        raise UnsuitableModelError(f"{model_name(model)} has no hyperbolic space; choose a hyperbolic model")
    found = embed_shards(embedder, root, min(options.max_examples or N_SAMPLES, N_SAMPLES))
    lifted = found.lifted(model)
    first = torch.tensor(
        [row for row in range(len(found.owner)) if row == 0 or found.owner[row] != found.owner[row - 1]]
    )
    parts = {
        part: factor_points(
            model, points if part in ("text", "image") else points[..., first.to(points.device), :]
        ).cpu()
        for part, points in lifted.items()
    }
    groups, start = {}, 0
    for part, points in parts.items():
        groups[part] = slice(start, start + points.shape[1])
        start += points.shape[1]
    joined = torch.cat(list(parts.values()), 1)
    factor = widest_factor(joined)
    return DiskPoints(joined[factor], groups, factor, len(found.captions), found.skipped)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Compute two horospherical components. Raises MissingFilesError, and UnsuitableModelError for a model without curvature."""
    data = disk_points(embedder, root, options)
    found = horopca(data.points)
    rules = {
        "explained": "mean squared distance of the projections, as a share of that of the points",
        "reflected": "share of points beyond the hull of the ideal points, projected to its near side",
        "center": "Frechet mean",
    }
    metrics = {"explained": found.explained, "reflected": found.reflected}
    return disk_result(data, found.coordinates, metrics, rules, "HoroPCA, two components", root)


def disk_result(
    data: DiskPoints, coordinates: Tensor, metrics: dict[str, float], rules: dict[str, str], title: str, root: Path
) -> TaskResult:
    """The result for points at coordinates [n 2] of the disk, with the median distance of each group from its center."""
    groups = {NAMES[part]: coordinates[rows].numpy() for part, rows in data.groups.items()}
    norms = {name: np.linalg.norm(points, axis=1).clip(max=1 - 1e-12) for name, points in groups.items()}
    medians = {f"{name}/median_distance": float(np.median(2 * np.arctanh(norm))) for name, norm in norms.items()}
    return TaskResult(
        metrics=metrics | medians,
        rules=rules | {"factor": str(data.factor)},
        n_used=data.n_samples,
        skipped=data.skipped,
        checksums=checksums(root, root / HELD_OUT),
        details={"coordinates": {name: points.round(4).tolist() for name, points in groups.items()}},
        figures=[Figure("disk", title, draw_disk, groups)],
    )
