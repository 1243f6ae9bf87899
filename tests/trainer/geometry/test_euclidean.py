"""Flat space: distances, cones and coordinates against their definitions, in float64."""

import math

import numpy as np
import pytest
import torch

from trainer.geometry import euclidean, lorentz


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_squared_distances_and_inner_coordinates_agree_with_differences() -> None:
    x, y = normal(4, 7), normal(6, 7, seed=1)
    expected = (x[:, None] - y[None]).square().sum(-1)
    torch.testing.assert_close(euclidean.pairwise_squared_distance(x, y), expected)
    product = euclidean.inner_coordinates(x, -1) @ euclidean.inner_coordinates(y, 1).T
    torch.testing.assert_close(product, -expected)
    assert (euclidean.pairwise_squared_distance(x, x).diagonal() >= 0).all()


def test_close_points_far_from_the_origin_keep_their_digits_in_float32() -> None:
    x = (100 + normal(5, 8)).float()
    y = x + 0.01
    expected = (x.double() - y.double()).square().sum(-1)
    found = euclidean.pairwise_squared_distance(x, y).diagonal().double()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("radius", [0.05, 0.11, 0.2, 3.0])
def test_half_aperture_is_the_arcsine_of_k_over_the_norm(radius: float) -> None:
    apex = radius * torch.nn.functional.normalize(normal(3, 5), dim=-1)
    expected = math.asin(min(1, 0.1 / radius))
    assert euclidean.half_aperture(apex).tolist() == pytest.approx([expected] * 3, abs=2e-4)


def test_exterior_angle_is_that_between_the_apex_and_the_step() -> None:
    apexes, points = normal(20, 5), normal(20, 5, seed=1)
    expected = [
        math.acos(np.dot(x, y - x) / np.linalg.norm(x) / np.linalg.norm(y - x))
        for x, y in zip(apexes.numpy(), points.numpy(), strict=True)
    ]
    assert euclidean.exterior_angle(apexes, points).tolist() == pytest.approx(expected, abs=1e-9)
    assert euclidean.exterior_angle(apexes, apexes).tolist() == pytest.approx([math.pi / 2] * 20)


def test_the_hyperboloid_of_a_small_curvature_has_the_same_angles() -> None:
    apexes, points, c = normal(20, 5), normal(20, 5, seed=1), torch.tensor(1e-6, dtype=torch.float64)
    expected = lorentz.exterior_angle(apexes, points, c, eps=1e-12)
    torch.testing.assert_close(euclidean.exterior_angle(apexes, points), expected, atol=1e-5, rtol=0)
