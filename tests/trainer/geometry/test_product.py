import pytest
import torch

from trainer.geometry import product


def test_split_puts_factors_first_and_keeps_neighbouring_coordinates_together() -> None:
    assert product.split(torch.arange(8.0).view(1, 8), 4).tolist() == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]


@pytest.mark.parametrize(("metric", "expected"), [("l1", 3.5), ("l2", 12.5**0.5)])
def test_factor_distances_combine_to_their_mean(metric: product.Metric, expected: float) -> None:
    assert product.combine(torch.tensor([3.0, 4.0]), metric).item() == pytest.approx(expected)
