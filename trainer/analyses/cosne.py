"""CO-SNE of texts, images, phrases and boxes in the Poincaré disk (HyCoCLIP, figure 5).

As in HyCoCLIP, points of more dimensions are reduced to 50 principal components first, here in the tangent space at the
origin. The samples are those of the task horopca.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.analyses.horopca import disk_points, disk_result
from trainer.analyses.shard_points import HELD_OUT
from trainer.evaluation.metrics.spaces import ball_to_lorentz, lorentz_to_ball
from trainer.evaluation.task import Embedder, TaskOptions, TaskResult
from trainer.geometry import lorentz

# CO-SNE: hyperbolic t-SNE that keeps distances to the origin (Guo et al. 2022).
#
# Points are in the unit Poincaré ball (curvature -1), float64, and are mapped to the unit disk.
#
#     p_ij   from hyperbolic normal distributions, exp(-d_ij^2 / (2 s_i^2)), each with the given perplexity
#     q_ij   from a hyperbolic Cauchy distribution of scale g, proportional to 1 / (1 + d_ij^2 / g^2)
#     loss   KL(p, q) and sum_i (|x_i|^2 - |y_i|^2)^2, each with its own learning rate
#
# Distances d are those of the ball and of the disk. Gradients are multiplied by the inverse of the Riemannian metric,
# (1 - |y|^2)^2 / 4. The released code uses d_ij in place of d_ij^2 in q_ij: `kernel="released"`.
#
# Shapes: n points, d width of the ball.

Kernel = Literal["paper", "released"]
"""Similarity in the disk: 1 / (1 + d^2 / g^2), or 1 / (1 + d / g^2)."""

ONE: Final = torch.ones((), dtype=torch.float64)
MAX_POINTS: Final = 4000
"""Maximum number of points: all pairs are in memory."""
MAX_NORM: Final = 1 - 1e-5
TINY: Final = 1e-12
INITIAL_SPREAD: Final = 1e-2
"""Standard deviation of the initial coordinates."""


@dataclass(frozen=True, kw_only=True)
class CosneSettings:
    """Settings; the defaults are those of the released script."""

    perplexity: float = 20.0
    scale: float = 0.1
    learning_rate: float = 5.0
    norm_learning_rate: float = 0.1
    steps: int = 1000
    kernel: Kernel = "paper"


@dataclass(frozen=True)
class Cosne:
    """The result for n points."""

    coordinates: Tensor  # [n 2] in the unit disk
    divergence: float  # KL(p, q)
    norm_error: float  # mean |difference of the distances to the origin| of points and coordinates


def cosne(points: Tensor, settings: CosneSettings) -> Cosne:
    """Map points [n d] of the unit ball to the disk.

    The optimization starts near the origin, from the first two principal components.
    Steps are plain gradient descent; a step is at most `scale` long, which keeps points from jumping to the boundary.

    Raises UserError for fewer than 4 or more than `MAX_POINTS` points, and for a perplexity of n - 1 or more.
    """
    n = len(points)
    if not 4 <= n <= MAX_POINTS:
        raise UserError(f"CO-SNE has {n} points; give between 4 and {MAX_POINTS}")
    if not 1 <= settings.perplexity < n - 1:
        raise UserError(f"CO-SNE has perplexity {settings.perplexity:g}; give a number from 1 to below {n - 1}")
    points = points.detach().double()
    squared_norms = points.square().sum(-1)
    p = similarities(pairwise_distances(points), settings.perplexity)
    y = initial_coordinates(points)
    for _ in range(settings.steps):
        gradient = settings.learning_rate * divergence_gradient(p, y, settings.scale, settings.kernel)
        gradient += settings.norm_learning_rate * norm_gradient(squared_norms, y)
        margin = 1 - y.square().sum(-1, keepdim=True)
        move = margin**2 / 4 * gradient
        length = 2 * move.norm(dim=-1, keepdim=True) / margin
        y = limit_norms(y - move * (settings.scale / length.clamp(min=settings.scale)))
    q = disk_similarities(pairwise_distances(y), settings.scale, settings.kernel)
    off = ~torch.eye(n, dtype=torch.bool)
    divergence = (p[off] * (p[off].clamp(min=TINY) / q[off].clamp(min=TINY)).log()).sum()
    radii = [2 * norms.clamp(max=MAX_NORM).atanh() for norms in (points.norm(dim=-1), y.norm(dim=-1))]
    return Cosne(y, divergence.item(), (radii[0] - radii[1]).abs().mean().item())


def principal_components(points: Tensor, k: int) -> Tensor:
    """The k principal components [n k] of points [n d] of the unit ball, as points of a k-dimensional ball.

    The points are mapped to tangent vectors at the origin, projected to the k directions with the largest mean square,
    and mapped back. The vectors are not centered, because distances to the origin matter. Points of at most k
    dimensions keep all distances.
    """
    tangents = lorentz.log_map0(ball_to_lorentz(points, ONE), ONE)
    k = min(k, *points.shape)
    vh = torch.linalg.svd(tangents, full_matrices=False).Vh
    return lorentz_to_ball(lorentz.exp_map0(tangents @ vh[:k].T, ONE), ONE)


def initial_coordinates(points: Tensor) -> Tensor:
    """Coordinates [n 2] near the origin: the first two principal components of the centered tangent vectors."""
    tangents = lorentz.log_map0(ball_to_lorentz(points, ONE), ONE)
    centered = tangents - tangents.mean(0)
    vh = torch.linalg.svd(centered, full_matrices=len(points) < 2 or points.shape[1] < 2).Vh[:2]
    flat = torch.zeros(len(points), 2, dtype=torch.float64)
    flat[:, : len(vh)] = centered @ vh.T
    flat = INITIAL_SPREAD * flat / flat.std().clamp(min=TINY)
    # Equal coordinates would have equal gradients: a small spiral separates them.
    turn = torch.arange(len(points), dtype=torch.float64) * (math.pi * (3 - 5**0.5))
    return limit_norms(flat + INITIAL_SPREAD / 100 * torch.stack([turn.cos(), turn.sin()], 1))


def limit_norms(y: Tensor) -> Tensor:
    """Points [n 2] with norms of at most `MAX_NORM`."""
    norms = y.norm(dim=-1, keepdim=True)
    return torch.where(norms > MAX_NORM, y * (MAX_NORM / norms.clamp(min=TINY)), y)


def pairwise_distances(points: Tensor) -> Tensor:
    """Distances [n n] of points of the unit ball: 2 asinh(|x - y| / sqrt((1 - |x|^2)(1 - |y|^2)))."""
    margins = 1 - points.square().sum(-1)
    chords = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return 2 * (chords / (margins[:, None] * margins).sqrt()).asinh()


def similarities(distances: Tensor, perplexity: float, steps: int = 64) -> Tensor:
    """Symmetric similarities p [n n] with sum 1, from distances [n n]; the diagonal is 0.

    p_j|i is proportional to exp(-d_ij^2 / (2 s_i^2)), with s_i such that the entropy of the row is log(perplexity). The
    precision 1 / (2 s_i^2) is found by bisection of its logarithm.
    """
    n = len(distances)
    squared = distances.square().clone()
    squared.fill_diagonal_(math.inf)
    nearest = squared.amin(1, keepdim=True)
    relative = squared - nearest  # does not change the normalized row
    scale = distances.square().sum(1, keepdim=True).clamp(min=TINY) / (n - 1)
    low, high = torch.full_like(scale, -30.0), torch.full_like(scale, 30.0)
    finite = torch.where(relative.isfinite(), relative, 0.0)
    for _ in range(steps):
        middle = (low + high) / 2
        precision = middle.exp() / scale
        weights = (-relative * precision).exp()
        total = weights.sum(1, keepdim=True)
        entropy = total.log() + precision * (finite * weights).sum(1, keepdim=True) / total
        too_wide = entropy > math.log(perplexity)
        low, high = torch.where(too_wide, middle, low), torch.where(too_wide, high, middle)
    conditional = weights / total
    return (conditional + conditional.T) / (2 * n)


def disk_similarities(distances: Tensor, scale: float, kernel: Kernel) -> Tensor:
    """Similarities q [n n] with sum 1, from distances [n n] in the disk; the diagonal is 0."""
    powers = distances.square() if kernel == "paper" else distances
    weights = 1 / (1 + powers / scale**2)
    weights = weights - weights.diagonal().diag()
    return weights / weights.sum()


def divergence_gradient(p: Tensor, y: Tensor, scale: float, kernel: Kernel) -> Tensor:
    """Euclidean gradient [n 2] of KL(p, q) in the coordinates y [n 2].

    With the kernel w = 1 / (1 + d^2 / g^2), dKL/dd_ij = (p_ij - q_ij) w_ij 2 d_ij / g^2 for each ordered pair; the
    released kernel has 1 / g^2 in place of 2 d_ij / g^2. The derivative of d_ij by y_i is that of
    cosh d = 1 + 2 |x - y|^2 / ((1 - |x|^2)(1 - |y|^2)).
    """
    margins = 1 - y.square().sum(-1)
    products = torch.outer(margins, margins)
    chords = (y[:, None, 0] - y[:, 0]).square_() + (y[:, None, 1] - y[:, 1]).square_()
    ratio = chords / products  # sinh^2(d / 2)
    distances = 2 * ratio.sqrt().asinh_()
    powers, slope = (distances.square(), 2 * distances) if kernel == "paper" else (distances, 1.0)
    weights = 1 / (1 + powers / scale**2)
    weights.fill_diagonal_(0.0)
    by_distance = (p - weights * (p.sum() / weights.sum())) * weights * slope / scale**2
    sinh = 2 * (ratio * (1 + ratio)).sqrt_()
    factor = by_distance * 4 / (sinh * products).clamp_(min=TINY)
    # d cosh(d) / dy_i = 4 / (m_i m_j) ((y_i - y_j) + |y_i - y_j|^2 / m_i y_i); each unordered pair occurs twice.
    outward = (factor * (1 + chords / margins[:, None])).sum(1, keepdim=True)
    return 2 * (outward * y - factor @ y)


def norm_gradient(squared_norms: Tensor, y: Tensor) -> Tensor:
    """Gradient [n 2] of sum_i (|x_i|^2 - |y_i|^2)^2 in y, from |x_i|^2 [n]."""
    return -4 * (squared_norms - y.square().sum(-1))[:, None] * y


COMPONENTS: Final = 50
MIN_POINTS: Final = 8


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Compute the coordinates.

    Raises MissingFilesError without held-out shards, UnsuitableModelError for a model without hyperbolic space, and
    UserError for too few points.

    `options.rule` selects the similarity in the disk. The perplexity is reduced for few points.
    """
    data = disk_points(embedder, root, options)
    if len(data.points) < MIN_POINTS:
        raise UserError(f"cosne: {root / HELD_OUT} has {len(data.points)} points; give at least {MIN_POINTS}")
    settings = CosneSettings(kernel=options.rule, perplexity=min(CosneSettings.perplexity, (len(data.points) - 1) / 3))
    found = cosne(principal_components(data.points, COMPONENTS), settings)
    rules = {
        "kernel": options.rule,
        "perplexity": f"{settings.perplexity:g}",
        "reduction": f"{min(COMPONENTS, data.points.shape[1])} components in the tangent space at the origin",
    }
    metrics = {"divergence_nats": found.divergence, "mean_error_of_distance_to_origin": found.norm_error}
    return disk_result(data, found.coordinates, metrics, rules, "CO-SNE", root)
