"""Order, AUC and average precision of entailments, for points chosen by hand."""

import math

import pytest
import torch

from tests.trainer.small import NAMES, small_model
from trainer.evaluation.metrics.entailment import draw_mismatched, entailment_metrics, mean_margin
from trainer.models.clip import CLIP
from trainer.models.terms import Entails

DIRECTIONS = (0.0, math.pi / 2, math.pi, 3 * math.pi / 2)
PERFECT = {"text_image/order": 1.0, "text_image/auc": 1.0, "text_image/ap": 1.0, "text_image/chance": 0.5}


def points(radius: float, *angles: float) -> torch.Tensor:
    """Points [n 16] at this distance from the origin and at these angles in the plane of the first two axes."""
    return torch.tensor([[radius * math.cos(angle), radius * math.sin(angle), *[0.0] * 14] for angle in angles])


def test_points_farther_out_in_the_direction_of_their_apex_alone_have_perfect_results() -> None:
    lifted = {"text": points(1.0, *DIRECTIONS), "image": points(3.0, *DIRECTIONS)}
    assert entailment_metrics(small_model("meru"), lifted, None) == PERFECT
    exchanged = {"text": lifted["image"], "image": lifted["text"]}
    assert entailment_metrics(small_model("meru"), exchanged, None)["text_image/order"] == 0.0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("clip", "taxonomy")])
def test_random_and_collapsed_points_have_the_chance_level_but_collapsed_ones_no_order(name: str) -> None:
    model, generator = small_model(name), torch.Generator().manual_seed(0)
    collapsed = model.lift_text(torch.full((6, 16), 0.01))
    found = entailment_metrics(model, {"text": collapsed, "image": collapsed}, None)
    assert found["text_image/order"] == 0.0
    assert found["text_image/auc"] == found["text_image/ap"] == 0.5
    text, image = (model.lift_text(torch.randn(2000, 16, generator=generator)) for _ in range(2))
    found = entailment_metrics(model, {"text": text, "image": image}, None)
    for key in ("order", "auc", "ap"):
        assert found[f"text_image/{key}"] == pytest.approx(0.5, abs=0.03)


def test_scaling_curvature_together_with_the_points_changes_no_result() -> None:
    model = small_model("meru")
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(50, 16, generator=generator)
    image = 1.5 * text + torch.randn(50, 16, generator=generator)
    before = entailment_metrics(model, {"text": text, "image": image}, None)
    with torch.no_grad():
        model.get_parameter("curv").sub_(math.log(4.0))
    after = entailment_metrics(model, {"text": 2 * text, "image": 2 * image}, None)
    assert after == pytest.approx(before, abs=1e-6)
    assert 0.6 < before["text_image/auc"] < 1


def test_boxes_are_paired_with_the_images_that_they_belong_to() -> None:
    model = small_model("hycoclip")
    owner = torch.tensor([0, 0, 1])
    lifted = {
        "text": points(3.0, 0.0, 2.0),
        "image": points(6.0, 0.0, 2.0),
        "box_text": points(1.0, 0.0, 0.0, 2.0),
        "box_image": points(1.0, 0.0, 0.0, 2.0),
    }
    found = entailment_metrics(model, lifted, owner)
    assert found["cross_image/auc"] == found["cross_text/auc"] == found["cross_image/order"] == 1.0
    swapped = entailment_metrics(model, lifted, 1 - owner)
    assert swapped["cross_image/auc"] < 0.5


def test_mismatched_partners_have_other_owners() -> None:
    owners = torch.tensor([0, 0, 0, 1, 2, 2])
    rows, partners = draw_mismatched(owners, seed=0)
    assert len(rows) > 20
    assert set(rows.tolist()) == set(range(6))
    assert not (owners[rows] == owners[partners]).any()


def test_a_single_pair_has_an_order_but_no_ranking() -> None:
    found = entailment_metrics(small_model("meru"), {"text": points(1.0, 0.0), "image": points(2.0, 0.0)}, None)
    assert found == {"text_image/order": 1.0, "text_image/chance": 0.5}


def test_the_margin_of_a_product_is_the_mean_over_its_factors() -> None:
    model = small_model("phyclip")  # two factors
    text, image = points(1.0, 0.0)[None, :, :8], points(3.0, 0.5)[None, :, :8]
    other = points(3.0, math.pi)[None, :, :8]
    both = mean_margin(model, torch.cat([text, text]), torch.cat([image, other]))
    same = [mean_margin(model, torch.cat([text, text]), torch.cat([part, part])) for part in (image, other)]
    torch.testing.assert_close(both, (same[0] + same[1]) / 2)


def test_an_energy_without_cones_has_results_too() -> None:
    class Order(CLIP):
        def entailments(self) -> tuple[Entails, ...]:
            return (Entails(name="text_image", general="text", specific="image"),)

        def energy(self, general: torch.Tensor, specific: torch.Tensor, eta: float = 1.0) -> torch.Tensor:
            return (general - specific).norm(dim=-1)

    lifted = {"text": points(2.0, *DIRECTIONS), "image": points(3.0, *DIRECTIONS)}
    assert entailment_metrics(Order(small_model("clip").config), lifted, None) == PERFECT


def test_clip_has_no_entailments() -> None:
    lifted = {"text": points(1.0, 0.0, 1.0), "image": points(1.0, 0.0, 1.0)}
    assert entailment_metrics(small_model("clip"), lifted, None) == {}
