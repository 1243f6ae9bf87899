"""Shares of satisfied entailments, for points chosen by hand."""

import math

import pytest
import torch

from tests.trainer.small import small_model
from trainer.evaluation.entailment import draw_mismatched, entailment_shares
from trainer.models.clip import CLIP
from trainer.models.dual_encoder import Entails
from trainer.models.meru import MERU

ETA_INTER = 0.7


def points(radius: float, *angles: float) -> torch.Tensor:
    """Points [n 16] at this distance from the origin and at these angles in the plane of the first two axes."""
    return torch.tensor([[radius * math.cos(angle), radius * math.sin(angle), *[0.0] * 14] for angle in angles])


def test_points_farther_from_the_origin_in_the_direction_of_an_apex_are_entailed_by_it_alone() -> None:
    directions = (0.0, math.pi / 2, math.pi, 3 * math.pi / 2)
    lifted = {"text": points(1.0, *directions), "image": points(3.0, *directions)}
    shares = entailment_shares(small_model("meru"), lifted, None)
    assert shares == {"text_image/satisfied": 1.0, "text_image/chance": 0.0}  # no *_plain: eta is 1


def test_eta_below_one_is_stricter_than_the_plain_cone() -> None:
    model = small_model("hycoclip")
    assert isinstance(model, MERU)
    text, image = points(1.0, 0.0).repeat(2, 1), points(9.0, 0.0).repeat(2, 1)
    aperture = model.cone(text, image)[1][0].item()
    # The exterior angle of a far point at this angle is between 0.7 times the half-aperture and the half-aperture.
    angle = next(
        a for a in torch.linspace(0, 0.5, 500).tolist() if model.cone(text, points(9.0, a, a))[0][0] > 0.85 * aperture
    )
    shares = entailment_shares(model, {"text": text, "image": points(9.0, angle, angle)}, None)
    assert (shares["text_image/satisfied"], shares["text_image/satisfied_plain"]) == (0.0, 1.0)


def test_boxes_are_paired_with_the_images_that_they_belong_to() -> None:
    model = small_model("hycoclip")
    owner = torch.tensor([0, 0, 1])
    lifted = {
        "text": points(3.0, 0.0, 2.0),
        "image": points(6.0, 0.0, 2.0),
        "box_text": points(1.0, 0.0, 0.0, 2.0),
        "box_image": points(1.0, 0.0, 0.0, 2.0),
    }
    shares = entailment_shares(model, lifted, owner)
    assert shares["cross_image/satisfied"] == shares["cross_text/satisfied"] == 1.0
    assert shares["cross_image/chance"] == shares["cross_text/chance"] == 0.0
    swapped = entailment_shares(model, lifted, 1 - owner)
    assert swapped["cross_image/satisfied"] == 0.0


def test_mismatched_partners_have_other_owners() -> None:
    owners = torch.tensor([0, 0, 0, 1, 2, 2])
    rows, partners = draw_mismatched(owners, seed=0)
    assert len(rows) > 20
    assert set(rows.tolist()) == set(range(6))
    assert not (owners[rows] == owners[partners]).any()


def test_shares_of_a_product_are_means_over_its_factors() -> None:
    model = small_model("phyclip")  # two factors
    text = torch.stack([points(1.0, 0.0, 0.0), points(1.0, 0.0, 0.0)])
    image = torch.stack([points(3.0, 0.0, 0.0), points(3.0, math.pi, math.pi)])[..., :8]
    shares = entailment_shares(model, {"text": text[..., :8], "image": image}, None)
    assert shares["text_image/satisfied"] == pytest.approx(0.5)


def test_an_energy_without_cones_has_shares_too() -> None:
    class Order(CLIP):
        def entailments(self) -> tuple[Entails, ...]:
            return (Entails(name="text_image", general="text", specific="image"),)

        def energy(self, general: torch.Tensor, specific: torch.Tensor, eta: float = 1.0) -> torch.Tensor:
            return (general.norm(dim=-1) - specific.norm(dim=-1)).clamp(min=0)

    lifted = {"text": points(2.0, 0.0, 1.0), "image": torch.cat([points(1.0, 0.0), points(3.0, 0.0)])}
    shares = entailment_shares(Order(small_model("clip").config), lifted, None)
    assert shares["text_image/satisfied"] == 0.5


def test_clip_has_no_entailments() -> None:
    lifted = {"text": points(1.0, 0.0, 1.0), "image": points(1.0, 0.0, 1.0)}
    assert entailment_shares(small_model("clip"), lifted, None) == {}
