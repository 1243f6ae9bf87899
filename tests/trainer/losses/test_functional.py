"""The plain loss functions on small inputs."""

import math

import pytest
import torch

from trainer.losses.functional import angle_outside_cone, contrastive, entropy, mean_over_pairs, regularised_entailment


def test_contrastive_loss_of_equal_logits_is_the_logarithm_of_the_number_of_candidates() -> None:
    assert contrastive(torch.zeros(3, 5)).item() == pytest.approx(math.log(5))


def test_targets_select_the_candidate_of_each_query() -> None:
    logits = torch.full((3, 4), -20.0)
    logits[0, 2] = logits[1, 3] = logits[2, 3] = 20.0
    assert contrastive(logits, targets=torch.tensor([2, 3, 3])).item() == pytest.approx(0, abs=1e-6)


def test_entailment_is_the_mean_angle_outside_the_scaled_cone() -> None:
    angle, aperture = torch.tensor([0.5, 1.5]), torch.tensor([1.0, 1.0])
    assert mean_over_pairs(angle_outside_cone(angle, aperture)).item() == pytest.approx(0.25)
    assert mean_over_pairs(angle_outside_cone(angle, aperture, eta=0.4)).item() == pytest.approx((0.1 + 1.1) / 2)


def test_regularised_entailment_has_its_minimum_at_the_boundary_of_the_cone() -> None:
    aperture = torch.tensor(0.8)
    values = [regularised_entailment(torch.tensor(angle), aperture, 0.1).item() for angle in (0.7, 0.8, 0.9)]
    assert values[1] < values[0]
    assert values[1] < values[2]


@pytest.mark.parametrize(("kind", "grows"), [("abs", True), ("softmax", False)])
def test_entropy_of_absolute_values_grows_with_the_radius_and_that_of_softmax_falls(kind: str, grows: bool) -> None:
    direction = torch.nn.functional.normalize(torch.randn(4, 512, generator=torch.Generator().manual_seed(0)), dim=-1)
    near, far = entropy(0.1 * direction, kind), entropy(0.9 * direction, kind)  # type: ignore[arg-type]
    assert ((far > near) == grows).all()


def test_entropy_of_zeros_is_zero() -> None:
    assert entropy(torch.zeros(2, 8)).tolist() == [0, 0]
