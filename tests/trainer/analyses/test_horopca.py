"""HoroPCA: isometry in the plane, contraction, fixed points and closed forms."""

import math

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.analyses.horopca import (
    ONE,
    busemann,
    frechet_mean,
    horopca,
    is_beyond_hull,
    mean_squared_distance,
    orthonormal,
    project,
    translate,
)
from trainer.evaluation.metrics.spaces import ball_to_lorentz, lorentz_to_ball
from trainer.geometry import lorentz


def ball(n: int, d: int, spread: float = 1.0, seed: int = 0) -> Tensor:
    """Points [n d] of the unit ball, at distances from the origin of about `spread`."""
    generator = torch.Generator().manual_seed(seed)
    tangents = spread * torch.randn(n, d, generator=generator, dtype=torch.float64) / d**0.5
    return lorentz_to_ball(lorentz.exp_map0(tangents, ONE), ONE)


def distances(points: Tensor) -> Tensor:
    """Distances [n n] of points of the hyperboloid."""
    return lorentz.distance(points[:, None], points[None], ONE, eps=1e-14)


def random_directions(k: int, d: int) -> Tensor:
    return orthonormal(torch.randn(k, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_distances_of_points_of_the_plane_are_kept(spread: float) -> None:
    points = ball(30, 2, spread)
    found = horopca(points, k=2, steps=10)
    assert found.reflected == 0.0
    assert found.explained == pytest.approx(1.0, abs=1e-9)
    expected, kept = (distances(ball_to_lorentz(p, ONE)) for p in (points, found.coordinates))
    torch.testing.assert_close(kept, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("spread", [0.3, 2.0, 5.0])
def test_projections_never_increase_distances(k: int, spread: float) -> None:
    points = ball_to_lorentz(ball(40, 6, spread), ONE)
    projected = project(points, random_directions(k, 6))
    assert projected.isfinite().all()
    assert (distances(projected) <= distances(points) + 1e-6).all()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_projections_keep_the_busemann_functions(k: int) -> None:
    points, directions = ball_to_lorentz(ball(40, 6, 3.0), ONE), random_directions(k, 6)
    projected = project(points, directions)
    eye = torch.eye(k, dtype=torch.float64)
    torch.testing.assert_close(busemann(projected, eye), busemann(points, directions), rtol=1e-9, atol=1e-9)


def test_busemann_functions_are_those_of_the_ball() -> None:
    points, directions = ball(20, 4, 1.5), random_directions(2, 4)
    ratio = torch.cdist(points, directions).square() / (1 - points.square().sum(1, keepdim=True))
    torch.testing.assert_close(busemann(ball_to_lorentz(points, ONE), directions), ratio)


@pytest.mark.parametrize("k", [1, 2])
def test_points_of_the_submanifold_are_fixed(k: int) -> None:
    directions = random_directions(k, 5)
    inside = ball_to_lorentz(ball(30, k, 0.6), ONE)
    near = inside[~is_beyond_hull(inside, torch.eye(k, dtype=torch.float64))] if k > 1 else inside
    assert len(near) > 20
    torch.testing.assert_close(project(near @ directions, directions), near, rtol=1e-9, atol=1e-9)


def test_points_beyond_the_hull_of_the_ideal_points_are_reflected_into_it() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    far = torch.tensor([[2.0, 2.0]], dtype=torch.float64)
    assert is_beyond_hull(far, eye).tolist() == [True]
    projected = project(far, eye)
    assert not is_beyond_hull(projected, eye).any()
    torch.testing.assert_close(busemann(projected, eye), busemann(far, eye))


def test_the_frechet_mean_of_two_points_is_their_midpoint_and_of_a_symmetric_set_its_center() -> None:
    pair = ball(2, 3, 2.0)
    mean = frechet_mean(pair)[None]
    half = lorentz.distance(*(ball_to_lorentz(p, ONE) for p in (pair[:1], pair[1:])), ONE) / 2
    for end in (pair[:1], pair[1:]):
        found = lorentz.distance(ball_to_lorentz(end, ONE), ball_to_lorentz(mean, ONE), ONE)
        torch.testing.assert_close(found, half)
    center = torch.tensor([0.3, -0.5, 0.2], dtype=torch.float64)
    around = ball(8, 3, 3.0)
    symmetric = translate(torch.cat([around, -around]), center)
    torch.testing.assert_close(frechet_mean(symmetric), center, rtol=0, atol=1e-8)


def test_a_line_in_many_dimensions_is_found() -> None:
    direction = random_directions(1, 8)
    line = torch.linspace(-2, 2, 21, dtype=torch.float64)[:, None]
    noise = 0.02 * torch.randn(21, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = lorentz_to_ball(lorentz.exp_map0(line * direction + noise, ONE), ONE)
    found = horopca(points, k=1, steps=50)
    assert abs((found.directions @ direction.T).item()) > 0.999
    assert found.explained > 0.98
    order = found.coordinates[:, 0].argsort()
    assert order.tolist() in (list(range(21)), list(range(20, -1, -1)))


def test_the_optimization_improves_on_random_directions_and_is_reproducible() -> None:
    scale = torch.tensor([2.0, 1.5, 0.2, 0.2, 0.2, 0.2], dtype=torch.float64)
    tangents = scale * torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = lorentz_to_ball(lorentz.exp_map0(tangents, ONE), ONE)
    found, again = (horopca(points, steps=30) for _ in range(2))
    assert found.coordinates.equal(again.coordinates)
    centered = ball_to_lorentz(translate(points, -found.mean), ONE)
    random = mean_squared_distance(project(centered, random_directions(2, 6)))
    assert mean_squared_distance(project(centered, found.directions)) > 1.2 * random
    torch.testing.assert_close(found.directions @ found.directions.T, torch.eye(2, dtype=torch.float64))
    assert 0 < found.explained <= 1


def test_equal_points_have_coordinates_at_the_origin() -> None:
    found = horopca(ball(1, 4).repeat(5, 1), steps=3)
    assert found.coordinates.abs().max() < 1e-6


@pytest.mark.parametrize(("n", "k", "part"), [(1, 2, "1 points"), (5, 4, "k=4"), (2001, 2, "2001 points")])
def test_sizes_that_cannot_be_used_are_errors(n: int, k: int, part: str) -> None:
    with pytest.raises(UserError, match=part):
        horopca(ball(n, 3), k=k)


def test_closed_form_on_a_line() -> None:
    points = torch.tensor([[math.sinh(1.0), 0.0], [0.0, math.sinh(1.0)]], dtype=torch.float64)
    along = project(points, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert along[0].item() == pytest.approx(math.sinh(1.0))
    # The Busemann function of the second point is log cosh 1: its projection is at this distance on the other side.
    assert along[1].item() == pytest.approx(-math.sinh(math.log(math.cosh(1.0))))
