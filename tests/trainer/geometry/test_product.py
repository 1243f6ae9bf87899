"""Products of hyperbolic factors."""

import pytest
import torch

from trainer.geometry import product


def test_split_moves_factors_of_neighbouring_coordinates_to_the_first_axis() -> None:
    assert product.split(torch.arange(8.0).view(1, 8), 4).tolist() == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]


@pytest.mark.parametrize(("metric", "expected"), [("l1", 3.5), ("l2", 12.5**0.5)])
def test_combine_is_the_mean_for_l1_and_the_root_mean_square_for_l2(metric: product.Metric, expected: float) -> None:
    assert product.combine(torch.tensor([3.0, 4.0]), metric).item() == pytest.approx(expected)
