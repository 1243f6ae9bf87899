"""UNCHA: against the reference numbers, and its rules."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.parity import uncha as parity
from tests.parity.report import read
from tests.trainer.small import small_batch, small_model, with_boxes
from trainer.batch import Batch
from trainer.losses.functional import contrastive
from trainer.losses.uncertainty import spread, temperature_factors, uncertainty
from trainer.models.uncha import UNCHA

OWNER = torch.tensor([0, 0, 0, 1, 3, 3, 3])  # pair 2 has no box


def several_boxes() -> Batch:
    """Four pairs with seven boxes."""
    return with_boxes(small_batch(4), small_batch(7, seed=1), OWNER)


def test_small_model_matches_the_reference_numbers_of_one_and_of_two_processes() -> None:
    report = parity.compare(*read("uncha"))
    assert report.failed() == []
    assert {"two ranks", "training trace", "state dict", "long captions", "mini float64 loss"} <= report.rows.keys()


def test_an_altered_reference_number_fails() -> None:
    table = {"func/in/residual": np.ones(4), "func/calibration_grad_u": np.ones(4)}
    report = parity.Report()
    case = {"options": {}, "calibration": 1.0, "gradient_in_residual": False}
    parity.compare_calibrations(report, {"func": {"calibration": case}}, table, torch.ones(4), torch.ones(4))
    assert report.failed() == ["calibration"]


@pytest.mark.parametrize("chunk", [None, 10])
def test_candidates_are_repeated_for_each_box_or_compared_once(chunk: int | None) -> None:
    batch = several_boxes()
    for candidates, rows in (("repeated", OWNER), ("once", torch.arange(4))):
        model = small_model("uncha", candidates=candidates, loss_chunk=chunk)
        pairs = model.features(batch)
        losses = model.losses(pairs)
        image, text, box_image, box_text = (losses.points[name] for name in ("image", "text", "box_image", "box_text"))
        targets = torch.arange(7) if candidates == "repeated" else OWNER
        sides = ((box_image, text[rows]), (box_text, image[rows]))
        expected = sum(softened(model, *side, targets) for side in sides)
        torch.testing.assert_close(losses.terms["contrastive/global_local"], expected / 2)  # type: ignore[operator]


def softened(model: torch.nn.Module, queries: Tensor, candidates: Tensor, targets: Tensor) -> Tensor:
    """The contrastive loss with a temperature of each query."""
    assert isinstance(model, UNCHA)
    scales = model.scale("global_local_logit_scale") * temperature_factors(queries)
    return contrastive(scales[:, None] * model.similarity(queries, candidates), targets=targets).detach()


def test_energies_and_points_of_a_batch_are_returned_without_gradient() -> None:
    model = small_model("uncha")
    losses = model(several_boxes())
    assert {name: len(rows) for name, rows in losses.energies.items()} == {
        "text_image": 4, "box_text_image": 7, "cross_image": 7, "cross_text": 7,
    }  # fmt: skip
    assert {name: rows.shape for name, rows in losses.points.items()} == {
        "image": (4, 16), "text": (4, 16), "box_image": (7, 16), "box_text": (7, 16),
    }  # fmt: skip
    assert not any(rows.requires_grad for rows in (*losses.energies.values(), *losses.points.values()))
    mean = losses.energies["cross_image"].mean()
    torch.testing.assert_close(losses.terms["entailment/cross_image"], mean)


def test_a_calibration_follows_the_papers_rule_without_gradient_in_the_energy() -> None:
    model = small_model("uncha", calibration="paper")
    losses = model(several_boxes())
    u = uncertainty(losses.points["box_text"])
    expected = (losses.energies["cross_text"] * (-u).exp() + u).mean() + spread(u)
    torch.testing.assert_close(losses.terms["entailment/calibration_text"], expected)
