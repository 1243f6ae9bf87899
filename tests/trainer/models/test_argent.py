"""ARGENT: against numbers of a third party's implementation, and its energy."""

import pytest
import torch

from tests.parity import argent as parity
from tests.parity.report import read
from tests.trainer.small import small_batch, small_model
from trainer.batch import Batch, named_streams
from trainer.config import help_text
from trainer.losses.functional import huber_angle, log_barrier
from trainer.models.argent import ARGENT


def test_energies_and_regulariser_match_the_third_partys_and_an_altered_number_fails() -> None:
    table, meta = read("argent")
    meta["head"] = {name: meta["head"][name] for name in ("plain", "ragged", "plain@delta0.3")}
    assert parity.compare(table, meta).failed() == []
    altered = meta["head"]["ragged"]["out_float64"]
    altered["norm_regularization_loss"] *= 1.001
    assert parity.compare(table, meta).failed() == ["ragged terms"]


def test_a_wide_angle_grows_linearly_and_the_regulariser_is_smallest_at_its_norm() -> None:
    angle = torch.tensor([0.5, 2.0])
    assert huber_angle(angle, torch.ones(2), 1.0).tolist() == pytest.approx([0.125, 1.5])
    assert huber_angle(angle, torch.tensor([1.0, 0.25]), 1.0).tolist() == pytest.approx([0.125, 0.125])
    norms = torch.tensor([0.5**0.5])
    assert log_barrier(norms) < min(log_barrier(norms * 1.05), log_barrier(norms / 1.05))


def test_equal_points_within_a_modality_have_no_energy() -> None:
    model = small_model("argent")
    assert isinstance(model, ARGENT)
    points = model.lift_text(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))
    relations = {entails.name: entails for entails in model.entailments()}
    assert (model.penalty(points, points, relations["cross_text"]) < 1e-6).all()
    assert (model.penalty(points, points, relations["text_image"]) > 0.5).all()


def test_the_weight_of_the_regulariser_changes_the_loss_by_it() -> None:
    batch = small_batch()
    plain, weighted = small_model("argent")(batch), small_model("argent", norm_weight=0.5)(batch)
    torch.testing.assert_close(weighted.loss, plain.loss + 0.5 * plain.terms["norms"])


def test_features_of_norm_0_have_a_finite_loss_unless_norms_are_weighted() -> None:
    model = small_model("argent")
    features = torch.zeros(4, 16, requires_grad=True)
    names = ("image", "text", "box_image", "box_text")
    losses = model.losses(Batch(streams=named_streams(dict.fromkeys(names, features))))
    losses.loss.backward()
    assert features.grad is not None
    assert losses.loss.isfinite()
    assert features.grad.isfinite().all()
    assert losses.terms["norms"].isinf()


def test_help_names_it_as_experimental() -> None:
    assert any("Experimental" in line and "argent" in line for line in help_text("usage").splitlines())
