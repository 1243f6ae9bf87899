"""Norms of factors, and compositions by maximum."""

import math

import torch
from torch import tensor

from trainer.analyses.factors import factor_norms, max_composition, percentiles

CURVATURE = tensor([[1.0], [4.0]])
"""c of two factors."""


def test_factor_norms_are_distances_in_each_factor() -> None:
    points = tensor([[[math.sinh(1.5), 0.0]], [[0.0, math.sinh(3.0) / 2]]])  # distances 1.5, and 3 / sqrt(4)
    torch.testing.assert_close(factor_norms(points, CURVATURE), tensor([[1.5, 1.5]]).double())


def test_the_maximum_takes_each_factor_from_the_point_with_the_larger_norm() -> None:
    first, second = tensor([[[1.0, 0.0]], [[0.1, 0.0]]]), tensor([[[0.0, 0.5]], [[0.0, 0.6]]])
    found = max_composition(first, second, CURVATURE)
    assert found.tolist() == torch.stack([first[0], second[1]]).tolist()
    norms = [factor_norms(points, CURVATURE) for points in (first, second, found)]
    assert norms[2].equal(torch.maximum(norms[0], norms[1]))
    assert max_composition(second, first, CURVATURE).equal(found)
    assert max_composition(first, first, CURVATURE).equal(first)


def test_percentiles_of_equal_values_are_zero() -> None:
    assert percentiles(tensor([[3.0, 1.0, 2.0], [5.0, 5.0, 5.0]])).tolist() == [[1.0, 0.0, 0.5], [0.0, 0.0, 0.0]]
