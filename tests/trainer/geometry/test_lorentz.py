"""The Lorentz model: against the reference table, and properties of its functions."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.parity import lorentz as parity
from tests.parity.report import read
from trainer.geometry import lorentz

CURVATURES = (0.1, 0.7, 1.0, 3.0, 10.0)


def tangents(norm: float, n: int = 12, d: int = 8, seed: int = 0) -> Tensor:
    """Random vectors [n d] of the given norm, in float64."""
    v = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return norm * v / v.norm(dim=-1, keepdim=True)


def test_functions_match_the_reference_table_within_the_tolerances() -> None:
    rows = parity.compare(read("lorentz")[0])
    assert [row for row in rows if not row["error"] <= row["tolerance"]] == []


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("norm", [1e-4, 0.1, 2.0])
def test_log_map0_inverts_exp_map0(c: float, norm: float) -> None:
    v, curvature = tangents(norm), torch.tensor(c, dtype=torch.float64)
    torch.testing.assert_close(lorentz.log_map0(lorentz.exp_map0(v, curvature), curvature), v, rtol=1e-9, atol=0)


@pytest.mark.parametrize("c", CURVATURES)
def test_distance_to_the_origin_is_the_norm_of_the_tangent_vector(c: float) -> None:
    v, curvature = tangents(1.3), torch.tensor(c, dtype=torch.float64)
    x = lorentz.exp_map0(v, curvature)
    torch.testing.assert_close(lorentz.distance(x, torch.zeros_like(x), curvature), v.norm(dim=-1))


@settings(max_examples=30, deadline=None)
@given(c=st.floats(0.1, 10), s=st.floats(0.2, 5), seed=st.integers(0, 1000))
def test_angles_are_invariant_when_points_scale_by_s_and_curvature_by_1_over_s_squared(
    c: float, s: float, seed: int
) -> None:
    x, y = tangents(1.0, seed=seed), tangents(1.5, seed=seed + 1)
    before, after = torch.tensor(c, dtype=torch.float64), torch.tensor(c / s**2, dtype=torch.float64)
    kwargs = {"eps": 1e-14}
    torch.testing.assert_close(
        lorentz.exterior_angle(x, y, before, **kwargs), lorentz.exterior_angle(s * x, s * y, after, **kwargs)
    )
    torch.testing.assert_close(
        lorentz.half_aperture(x, before, **kwargs), lorentz.half_aperture(s * x, after, **kwargs)
    )
    torch.testing.assert_close(lorentz.distance(x, y, before) * s, lorentz.distance(s * x, s * y, after))


def test_distance_matches_the_acosh_formula_at_moderate_norms() -> None:
    c, x, y = torch.tensor(0.7, dtype=torch.float64), tangents(1.0), tangents(2.0, seed=1)
    inner = (x * y).sum(-1) - lorentz.time(x, c) * lorentz.time(y, c)
    torch.testing.assert_close(lorentz.distance(x, y, c), (-c * inner).acosh() / c.sqrt())


def test_pairwise_distance_matches_the_elementwise_distance_of_each_pair() -> None:
    c, x, y = torch.tensor(2.0), tangents(1.0).float(), tangents(3.0, seed=1).float()
    torch.testing.assert_close(lorentz.pairwise_distance(x, y, c), lorentz.distance(x[:, None], y[None], c))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairwise_angle_and_its_gradients_match_the_angle_of_each_pair(dtype: torch.dtype) -> None:
    c, results = torch.tensor(0.1, dtype=dtype), []
    for pairwise in (True, False):
        x, y = (tangents(1.0, seed=seed).to(dtype).requires_grad_() for seed in (0, 1))
        angles = (
            lorentz.pairwise_exterior_angle(x, y, c) if pairwise else lorentz.exterior_angle(x[:, None], y[None], c)
        )
        results.append((angles, *torch.autograd.grad(angles.square().sum(), (x, y))))
    torch.testing.assert_close(results[0], results[1])


def test_factors_with_different_curvatures_match_single_spaces() -> None:
    c = torch.tensor([0.2, 1.0, 5.0])
    x, y = torch.randn(3, 6, 4), torch.randn(3, 7, 4)
    together = lorentz.pairwise_distance(x, y, c[:, None])
    assert together.shape == (3, 6, 7)
    for k in range(3):
        torch.testing.assert_close(together[k], lorentz.pairwise_distance(x[k], y[k], c[k]))
        torch.testing.assert_close(lorentz.half_aperture(x, c[:, None])[k], lorentz.half_aperture(x[k], c[k]))


@pytest.mark.parametrize("norm", [1e-6, 1.0, 1e4])
def test_float32_distance_of_neighbours_is_accurate_far_from_and_near_the_origin(norm: float) -> None:
    c, x = torch.tensor(1.0), tangents(norm).float()
    y = x * (1 + 1e-3)
    expected = lorentz.distance(x.double(), y.double(), c.double(), eps=1e-30)
    torch.testing.assert_close(lorentz.distance(x, y, c, eps=1e-30).double(), expected, rtol=2e-3, atol=1e-9)


def check_finite_gradients(space: Any, base: Tensor, curvature: float) -> None:
    """Check the gradients of all functions of a space for equal, opposite and aligned points, and the origin."""
    c = torch.tensor(curvature, dtype=base.dtype, requires_grad=True)
    for other in (base, -base, 2 * base, base / 2, 0 * base):
        x, y = base.clone().requires_grad_(), other.clone().requires_grad_()
        loss = (
            space.pairwise_distance(x, y, c).sum()
            + space.distance(x, y, c).sum()
            + space.exterior_angle(x, y, c).sum()
            + space.half_aperture(x, c).sum()
            + space.log_map0(space.exp_map0(x, c), c).sum()
        )
        for grad in torch.autograd.grad(loss, (x, y, c)):
            assert grad.isfinite().all()


@pytest.mark.parametrize("norm", [0.0, 1e-30, 1e-20, 1e-4, 1.0, 3e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_for_equal_opposite_and_aligned_points(norm: float, dtype: torch.dtype) -> None:
    check_finite_gradients(lorentz, tangents(norm).to(dtype), 1.7)


def test_gradients_match_finite_differences() -> None:
    x = tangents(1.0, n=3, d=4).requires_grad_()
    y = tangents(1.7, n=3, d=4, seed=1).requires_grad_()
    c = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    for function in (lorentz.pairwise_distance, lorentz.distance, lorentz.exterior_angle):
        assert torch.autograd.gradcheck(function, (x, y, c))
    for function in (lorentz.half_aperture, lorentz.exp_map0, lorentz.log_map0):
        assert torch.autograd.gradcheck(function, (x, c))


def test_cone_near_the_origin_is_a_half_space() -> None:
    aperture = lorentz.half_aperture(tangents(0.1), torch.tensor(1.0))
    torch.testing.assert_close(aperture, torch.full_like(aperture, math.pi / 2), atol=2e-4, rtol=0)


def test_exterior_angle_is_0_straight_away_from_the_origin_and_pi_straight_towards_it() -> None:
    x, c = tangents(1.0), torch.tensor(0.5, dtype=torch.float64)
    outward, inward = lorentz.exterior_angle(x, 2 * x, c), lorentz.exterior_angle(x, x / 2, c)
    torch.testing.assert_close(outward, torch.zeros_like(outward), atol=3e-4, rtol=0)
    torch.testing.assert_close(inward, torch.full_like(inward, math.pi), atol=3e-4, rtol=0)


@pytest.mark.parametrize("norm", [1e3, 1e20, 1e37])
def test_exp_map0_clamps_long_tangent_vectors_and_keeps_their_direction(norm: float) -> None:
    v, c = tangents(norm).float().requires_grad_(), torch.tensor(4.0, requires_grad=True)
    point = lorentz.exp_map0(v, c)
    torch.testing.assert_close(point.norm(dim=-1), torch.full((len(v),), lorentz.MAX_SINH / 2))
    torch.testing.assert_close(lorentz.direction(point), lorentz.direction(tangents(norm)).float())
    for grad in torch.autograd.grad(point.sum(), (v, c)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("shapes", [((5, 8), (5, 8)), ((5, 1, 8), (1, 3, 8)), ((8,), (4, 8))])
def test_float32_gradients_of_angles_match_float64(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    points = [torch.randn(shape, generator=generator) for shape in shapes]
    curvature = torch.tensor(0.7)

    def gradients(dtype: torch.dtype) -> tuple[Tensor, ...]:
        x, y = (p.to(dtype).requires_grad_() for p in points)
        angles = lorentz.exterior_angle(x, y, curvature.to(dtype))
        return torch.autograd.grad((angles * torch.arange(angles.numel()).view_as(angles)).sum(), (x, y))

    for single, double in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        torch.testing.assert_close(single, double.float(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["exp_map0", "log_map0", "half_aperture", "distance", "exterior_angle"])
def test_float32_second_derivatives_match_float64(name: str) -> None:
    function = getattr(lorentz, name)
    points = (tangents(1.0), tangents(1.7, seed=1))[: 2 if name in ("distance", "exterior_angle") else 1]

    def second_derivative(dtype: torch.dtype) -> Tensor:
        x, *others = (point.to(dtype).requires_grad_() for point in points)
        values = function(x, *others, torch.tensor(0.7, dtype=dtype))
        (gradient,) = torch.autograd.grad(values.square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), x)[0]

    torch.testing.assert_close(
        second_derivative(torch.float32), second_derivative(torch.float64).float(), rtol=2e-5, atol=2e-5
    )
