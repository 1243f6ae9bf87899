"""CO-SNE: gradients, perplexity, clusters and distances to the origin."""

import math

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.analyses.cosne import (
    ONE,
    CosneSettings,
    Kernel,
    cosne,
    disk_similarities,
    divergence_gradient,
    norm_gradient,
    pairwise_distances,
    principal_components,
    similarities,
)
from trainer.evaluation.metrics.spaces import ball_to_lorentz, lorentz_to_ball
from trainer.geometry import lorentz


def ball(tangents: Tensor) -> Tensor:
    return lorentz_to_ball(lorentz.exp_map0(tangents.double(), ONE), ONE)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clusters() -> tuple[Tensor, Tensor]:
    """Points [45 10] of the ball in three clusters, and the numbers [45] of their clusters."""
    labels = torch.arange(45) % 3
    centers = torch.eye(10, dtype=torch.float64)[:3] * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)[:, None]
    return ball(centers[labels] + 0.1 * normal(45, 10)), labels


def test_distances_are_those_of_the_hyperboloid() -> None:
    points = ball(normal(12, 4))
    space = ball_to_lorentz(points, ONE)
    expected = lorentz.distance(space[:, None], space[None], ONE, eps=1e-16)
    torch.testing.assert_close(pairwise_distances(points), expected, rtol=1e-9, atol=1e-7)


def test_rows_of_equal_distances_are_uniform_and_the_similarities_are_a_distribution() -> None:
    p = similarities(1 - torch.eye(5, dtype=torch.float64), 4.0)
    torch.testing.assert_close(p, (1 - torch.eye(5, dtype=torch.float64)) / 20)
    random = similarities(pairwise_distances(ball(normal(40, 5))), 10.0)
    torch.testing.assert_close(random.sum(), ONE)
    assert random.equal(random.T)
    assert random.diagonal().abs().max() == 0


@pytest.mark.parametrize("perplexity", [3.0, 12.0])
def test_each_row_has_the_perplexity(perplexity: float) -> None:
    # In a ring all rows are equal, and the symmetric similarities are those of the rows divided by n.
    angles = torch.arange(30, dtype=torch.float64) * (2 * math.pi / 30)
    ring = 0.5 * torch.stack([angles.cos(), angles.sin()], 1)
    rows = 30 * similarities(pairwise_distances(ring), perplexity)
    entropy = -torch.special.xlogy(rows, rows).sum(1)
    torch.testing.assert_close(entropy.exp(), torch.full_like(entropy, perplexity), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kernel", ["paper", "released"])
def test_the_gradient_of_the_divergence_is_that_of_autograd(kernel: Kernel) -> None:
    n = 9
    p = similarities(pairwise_distances(ball(normal(n, 4))), 3.0)
    y = (0.3 * normal(n, 2, seed=1)).clamp(-0.6, 0.6).requires_grad_()
    off = ~torch.eye(n, dtype=torch.bool)
    squared = torch.where(off[..., None], y[:, None] - y[None], 1.0).square().sum(-1)
    margins = 1 - y.square().sum(-1)
    distances = torch.where(off, 2 * (squared / (margins[:, None] * margins)).sqrt().asinh(), 0.0)
    q = disk_similarities(distances, 0.1, kernel)
    (p[off] * (p[off] / q[off]).log()).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(divergence_gradient(p, y.detach(), 0.1, kernel), y.grad, rtol=1e-8, atol=1e-8)


def test_the_gradient_of_the_norms_is_that_of_autograd() -> None:
    x2, y = normal(7).square(), normal(7, 2, seed=1).requires_grad_()
    (x2 - y.square().sum(-1)).square().sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(norm_gradient(x2, y.detach()), y.grad)


@pytest.mark.parametrize("kernel", ["paper", "released"])
def test_clusters_stay_together_and_keep_their_distance_to_the_origin(kernel: Kernel) -> None:
    points, labels = clusters()
    found = cosne(points, CosneSettings(steps=300, perplexity=10.0, kernel=kernel, learning_rate=0.5))
    assert found.coordinates.norm(dim=-1).max() < 1
    distances = pairwise_distances(found.coordinates).fill_diagonal_(math.inf)
    assert (labels[distances.argmin(1)] == labels).all()
    radii = found.coordinates.norm(dim=-1)
    means = [radii[labels == label].mean() for label in range(3)]
    assert means[0] < means[1] < means[2]
    assert found.norm_error < 0.25


def test_the_optimization_lowers_the_divergence_and_is_reproducible() -> None:
    points = ball(1.5 * normal(40, 8))
    start, end, again = (
        cosne(points, CosneSettings(steps=steps, perplexity=8.0, learning_rate=1.0)) for steps in (0, 60, 60)
    )
    assert end.divergence < 0.9 * start.divergence
    assert end.coordinates.equal(again.coordinates)


def test_equal_points_have_finite_coordinates() -> None:
    found = cosne(ball(torch.ones(8, 3)), CosneSettings(steps=20, perplexity=3.0))
    assert found.coordinates.isfinite().all()
    assert found.coordinates.norm(dim=-1).max() < 1


def test_principal_components_of_points_of_a_subspace_keep_all_distances() -> None:
    basis = torch.linalg.qr(normal(9, 3))[0].T
    points = ball(normal(20, 3) @ basis)
    torch.testing.assert_close(pairwise_distances(principal_components(points, 3)), pairwise_distances(points))
    assert principal_components(points, 50).shape == (20, 9)


@pytest.mark.parametrize(
    ("n", "perplexity", "part"), [(3, 1.0, "3 points"), (10, 9.0, "below 9"), (4001, 5.0, "4001 points")]
)
def test_sizes_that_cannot_be_used_are_errors(n: int, perplexity: float, part: str) -> None:
    with pytest.raises(UserError, match=part):
        cosne(torch.zeros(n, 2), CosneSettings(perplexity=perplexity))
