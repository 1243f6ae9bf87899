"""The Poincaré ball: against the reference table, and properties of its functions."""

import pytest
import torch
from torch import Tensor

from tests.parity import poincare as parity
from tests.parity.report import read
from tests.trainer.geometry.test_lorentz import check_finite_gradients
from trainer.geometry import lorentz, poincare

CURVATURES = (0.2, 1.0, 6.0)


def points(radius: float, c: float, seed: int = 0) -> Tensor:
    """Random points [10 6] of the ball of curvature -c, at `radius` times the radius of the ball, in float64."""
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return radius / c**0.5 * x / x.norm(dim=-1, keepdim=True)


def scalar(c: float) -> Tensor:
    return torch.tensor(c, dtype=torch.float64)


def test_functions_match_the_reference_table_within_the_tolerances() -> None:
    rows = parity.compare(*read("poincare"))
    assert [row for row in rows if not row["error"] <= row["tolerance"]] == []


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("lift", ["conformal", "isometric"])
def test_log_map0_inverts_exp_map0(c: float, lift: poincare.Lift) -> None:
    v = points(0.8, c)
    result = poincare.log_map0(poincare.exp_map0(v, scalar(c), lift), scalar(c), lift)
    torch.testing.assert_close(result, v)


@pytest.mark.parametrize("c", CURVATURES)
def test_distance_to_the_origin_is_twice_the_norm_with_the_conformal_lift_and_the_norm_with_the_isometric_one(
    c: float,
) -> None:
    v = points(0.7, c)
    for lift, factor in (("conformal", 2), ("isometric", 1)):
        p = poincare.exp_map0(v, scalar(c), lift)
        torch.testing.assert_close(poincare.distance(p, torch.zeros_like(p), scalar(c)), factor * v.norm(dim=-1))


@pytest.mark.parametrize("c", CURVATURES)
def test_isometric_lift_is_the_lorentz_exp_map0_mapped_to_the_ball(c: float) -> None:
    v = points(0.9, c)
    x = lorentz.exp_map0(v, scalar(c))
    mapped = x / (1 + (1 + c * x.square().sum(-1, keepdim=True)).sqrt())
    torch.testing.assert_close(poincare.exp_map0(v, scalar(c), "isometric"), mapped)


@pytest.mark.parametrize("c", CURVATURES)
def test_mobius_addition_has_an_identity_and_inverses(c: float) -> None:
    x, zero = points(0.6, c), torch.zeros(10, 6, dtype=torch.float64)
    torch.testing.assert_close(poincare.mobius_add(x, zero, scalar(c)), x)
    torch.testing.assert_close(poincare.mobius_add(-x, x, scalar(c)), zero)


@pytest.mark.parametrize("c", CURVATURES)
def test_mobius_addition_to_both_points_keeps_their_distance(c: float) -> None:
    x, y, step = points(0.6, c), points(0.5, c, 1), points(0.4, c, 2)
    moved = (poincare.mobius_add(step, p, scalar(c)) for p in (x, y))
    torch.testing.assert_close(poincare.distance(*moved, scalar(c)), poincare.distance(x, y, scalar(c)))


@pytest.mark.parametrize("c", CURVATURES)
def test_exterior_angle_matches_equation_7(c: float) -> None:
    x, y = points(0.5, c), points(0.8, c, 1)
    dot, x2, y2 = (x * y).sum(-1), x.square().sum(-1), y.square().sum(-1)
    cosine = (dot * (1 + c * x2) - x2 * (1 + c * y2)) / (
        x2.sqrt() * (x - y).norm(dim=-1) * (1 + c**2 * x2 * y2 - 2 * c * dot).sqrt()
    )
    torch.testing.assert_close(poincare.exterior_angle(x, y, scalar(c)), cosine.acos())


@pytest.mark.parametrize("radius", [0.0, 1e-6, 0.5, 0.99999])
def test_gradients_are_finite_from_the_origin_to_the_boundary(radius: float) -> None:
    check_finite_gradients(poincare, points(radius, 2.0).float(), 2.0)


def test_exp_map0_of_long_tangent_vectors_is_inside_the_ball() -> None:
    c = torch.tensor(3.0)
    p = poincare.exp_map0(1e4 * torch.randn(5, 4), c)
    assert (c * p.square().sum(-1) < 1).all()
