from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.parity import poincare as parity
from trainer.geometry import lorentz, poincare

TABLE = Path(__file__).parents[2] / "parity" / "data" / "poincare.npz"
CURVATURES = (0.2, 1.0, 6.0)


def points(radius: float, c: float, seed: int = 0) -> Tensor:
    """On a ball of curvature -c, at a share of its radius."""
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return radius / c**0.5 * x / x.norm(dim=-1, keepdim=True)


def scalar(c: float) -> Tensor:
    return torch.tensor(c, dtype=torch.float64)


def test_ball_agrees_with_the_lorentz_table_through_the_isometry() -> None:
    with np.load(TABLE) as table:
        rows = parity.compare(table)
    assert [row for row in rows if not row["error"] <= row["bar"]] == []


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("lift", ["conformal", "isometric"])
def test_log_map_undoes_exp_map(c: float, lift: poincare.Lift) -> None:
    v = points(0.8, c)
    back = poincare.log_map0(poincare.exp_map0(v, scalar(c), lift), scalar(c), lift)
    torch.testing.assert_close(back, v)


@pytest.mark.parametrize("c", CURVATURES)
def test_conformal_lift_doubles_lengths_and_the_isometric_one_keeps_them(c: float) -> None:
    v = points(0.7, c)
    for lift, factor in (("conformal", 2), ("isometric", 1)):
        p = poincare.exp_map0(v, scalar(c), lift)
        torch.testing.assert_close(poincare.distance(p, torch.zeros_like(p), scalar(c)), factor * v.norm(dim=-1))


@pytest.mark.parametrize("c", CURVATURES)
def test_isometric_lift_is_the_lorentz_one_seen_through_the_isometry(c: float) -> None:
    v = points(0.9, c)
    x = lorentz.exp_map0(v, scalar(c))
    seen = x / (1 + (1 + c * x.square().sum(-1, keepdim=True)).sqrt())
    torch.testing.assert_close(poincare.exp_map0(v, scalar(c), "isometric"), seen)


@pytest.mark.parametrize("c", CURVATURES)
def test_mobius_addition_has_an_identity_and_inverses(c: float) -> None:
    x, zero = points(0.6, c), torch.zeros(10, 6, dtype=torch.float64)
    torch.testing.assert_close(poincare.mobius_add(x, zero, scalar(c)), x)
    torch.testing.assert_close(poincare.mobius_add(-x, x, scalar(c)), zero)


@pytest.mark.parametrize("c", CURVATURES)
def test_moving_both_points_by_a_mobius_addition_keeps_their_distance(c: float) -> None:
    x, y, step = points(0.6, c), points(0.5, c, 1), points(0.4, c, 2)
    moved = (poincare.mobius_add(step, p, scalar(c)) for p in (x, y))
    torch.testing.assert_close(poincare.distance(*moved, scalar(c)), poincare.distance(x, y, scalar(c)))


@pytest.mark.parametrize("c", CURVATURES)
def test_exterior_angle_agrees_with_the_arc_cosine_of_equation_7(c: float) -> None:
    x, y = points(0.5, c), points(0.8, c, 1)
    dot, x2, y2 = (x * y).sum(-1), x.square().sum(-1), y.square().sum(-1)
    cosine = (dot * (1 + c * x2) - x2 * (1 + c * y2)) / (
        x2.sqrt() * (x - y).norm(dim=-1) * (1 + c**2 * x2 * y2 - 2 * c * dot).sqrt()
    )
    torch.testing.assert_close(poincare.exterior_angle(x, y, scalar(c)), cosine.acos())


@pytest.mark.parametrize("radius", [0.0, 1e-6, 0.5, 0.99999])
def test_gradients_are_finite_from_the_origin_to_the_rim(radius: float) -> None:
    base, c = points(radius, 2.0).float(), torch.tensor(2.0, requires_grad=True)
    for other in (base, -base, base / 2, 0 * base):
        x, y = base.clone().requires_grad_(), other.clone().requires_grad_()
        loss = (
            poincare.pairwise_distance(x, y, c).sum()
            + poincare.distance(x, y, c).sum()
            + poincare.exterior_angle(x, y, c).sum()
            + poincare.half_aperture(x, c).sum()
            + poincare.log_map0(poincare.exp_map0(x, c), c).sum()
        )
        for grad in torch.autograd.grad(loss, (x, y, c)):
            assert grad.isfinite().all()


def test_long_tangents_stay_inside_the_ball() -> None:
    c = torch.tensor(3.0)
    p = poincare.exp_map0(1e4 * torch.randn(5, 4), c)
    assert (c * p.square().sum(-1) < 1).all()
