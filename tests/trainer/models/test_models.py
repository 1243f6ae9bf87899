"""Losses of all models: against the reference numbers of the released code, and on small batches."""

import functools
import math
import operator

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.parity import models as parity
from tests.parity.report import read
from tests.trainer.small import NAMES, most_in_rest, overfit, rows, small_batch, small_model, with_boxes
from trainer.batch import Batch, named_streams
from trainer.losses.functional import contrastive
from trainer.models.meru import MERU
from trainer.models.phyclip import PHyCLIP
from trainer.models.poinclip import PoinCLIP
from trainer.models.registry import model_name


@pytest.mark.parametrize("name", ["clip", "meru", "hycoclip", "phyclip"])
def test_small_model_and_its_loss_match_the_reference_numbers(name: str) -> None:
    assert parity.compare(*read(name)).failed() == []


def test_altered_reference_numbers_of_a_model_are_found() -> None:
    table, meta = read("meru")
    for *path, last in (
        ("head", "plain", "out", "loss"),
        ("head", "plain", "grad_scalar_float64", "curv"),
        ("head", "tiny", "out_float64", "loss"),
        ("head", "incone", "out_float64", "entailment_loss"),
        ("grad_scalar", "mini", "logit_scale"),
        ("scalars_after_forward", "mini", "curv"),
        ("train_trace", 5, "loss"),
    ):
        parent = functools.reduce(operator.getitem, path, meta)
        parent[last] = parent[last] * 1.02 + 1e-3
    assert set(parity.compare(table, meta).failed()) == {
        "clamped scalars",
        "mini float32 scalar gradients",
        "training trace",
        "head plain float32, loss",
        "head scalar gradients float64",
        "head incone float64",
        "head tiny float64",
    }


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip", "meru", "hycoclip", "phyclip"])
def test_vit_s16_matches_the_reference_numbers(name: str) -> None:
    report = parity.Report()
    table, meta = read(name)
    parity.compare_size(report, meta, table, "vit_s16", torch.float32)
    assert report.failed() == []


@pytest.mark.parametrize("name", most_in_rest("hycoclip phyclip poinclip"))
def test_model_overfits_eight_pairs(name: str) -> None:
    model, batch = small_model(name), small_batch()
    losses = overfit(model, batch, steps=60 if model.is_symmetric else 120)  # ATMG turns its points first
    with torch.no_grad():
        points = model.encode_image(batch["image"].rows), model.encode_text(batch["text"].rows)
        similarity = model.directed_similarity(*points, "image")
    assert (similarity.argmax(1) == torch.arange(8)).all()
    assert losses.terms["contrastive"] < 0.5


@pytest.mark.parametrize("name", NAMES)
def test_loss_does_not_depend_on_the_order_of_the_rows(name: str) -> None:
    model, batch = small_model(name), small_batch()
    reversed_batch = rows(batch, list(reversed(range(8))))
    torch.testing.assert_close(model(batch).loss, model(reversed_batch).loss)


@pytest.mark.parametrize("name", ["hycoclip", "phyclip", "uncha"])
def test_missing_boxes_are_an_error_unless_use_boxes_is_false(name: str) -> None:
    batch = with_boxes(small_batch(), None)
    model, without = small_model(name), small_model(name, use_boxes=False)
    assert (model.needs, without.needs) == ({"boxes"}, frozenset())
    with pytest.raises(ValueError, match="use_boxes=false"):
        model(batch)
    without(batch).loss.backward()
    assert all(parameter.grad is not None for parameter in without.parameters() if parameter.requires_grad)


def test_box_candidates_change_the_contrastive_loss_but_not_the_entailment_loss() -> None:
    batch = small_batch()
    paper, released = (small_model("phyclip", box_candidates=kind)(batch) for kind in ("paper", "released"))
    assert paper.terms["contrastive"] != released.terms["contrastive"]
    assert paper.terms["entailment"] == released.terms["entailment"]


def test_each_of_several_boxes_of_a_pair_is_one_term_of_the_box_losses() -> None:
    """The pair itself counts once: its image and caption are one candidate each."""
    batch = small_batch(4)
    owner = torch.tensor([0, 0, 0, 1, 2, 3, 3])
    several = with_boxes(batch, small_batch(7, seed=1), owner)
    model = small_model("hycoclip")
    assert isinstance(model, MERU)
    pairs = model.features(several)
    image, text = model.lift_image(pairs["image"].rows), model.lift_text(pairs["text"].rows)
    box_image, box_text = model.lift_image(pairs["box_image"].rows), model.lift_text(pairs["box_text"].rows)
    energies = [model.energy(box_image[i : i + 1], image[owner[i] : owner[i] + 1], 1.2).mean() for i in range(7)]
    terms = model.losses(pairs).terms
    torch.testing.assert_close(terms["entailment/cross_image"], torch.stack(energies).mean().detach())
    scale = model.logit_scale.exp()
    directions = [
        contrastive(scale * model.similarity(image, text)),
        contrastive(scale * model.similarity(text, image)),
        contrastive(scale * model.similarity(box_image, text), targets=owner),
        contrastive(scale * model.similarity(box_text, image), targets=owner),
    ]
    torch.testing.assert_close(terms["contrastive"], torch.stack(directions).mean().detach())


def test_clamp_parameters_keeps_scalars_in_range() -> None:
    model = small_model("phyclip")
    assert isinstance(model, PHyCLIP)
    with torch.no_grad():
        model.curv += 9
        model.visual_alpha += 9
        model.logit_scale += 9
    model.clamp_parameters()
    assert model.curv.exp().max().item() == pytest.approx(10)
    assert model.visual_alpha.max() == 0
    assert model.logit_scale.exp().item() == pytest.approx(100)


def test_poinclip_apex_is_the_point_with_the_lower_entropy_or_the_text_with_order_text() -> None:
    """PoinCLIP, tables 3 and 5."""
    by_entropy, by_modality = (small_model("poinclip", order=order) for order in ("entropy", "text"))
    pairs = by_entropy.features(small_batch())
    near_images = pairs.with_rows({"image": pairs["image"].rows / 50})
    near_texts = pairs.with_rows({"text": pairs["text"].rows / 50})
    assert by_entropy.losses(near_images).terms["image_entails"] == 1
    assert by_entropy.losses(near_texts).terms["image_entails"] == 0
    found = by_modality.losses(near_images)
    assert found.terms["image_entails"] == 0
    assert found.terms["entailment"] != by_entropy.losses(near_images).terms["entailment"]
    assert found.loss.isfinite()


def test_the_controls_of_poinclips_order_take_the_nearer_point_or_either_as_the_apex() -> None:
    generator = torch.Generator().manual_seed(0)
    general, specific = torch.randn(2, 400, 16, generator=generator) / 20
    norm, random = (small_model("poinclip", order=order) for order in ("norm", "random"))
    assert isinstance(norm, PoinCLIP)
    assert isinstance(random, PoinCLIP)
    swapped = norm.is_swapped(general, specific)
    assert swapped.equal(specific.norm(dim=1) < general.norm(dim=1))
    torch.testing.assert_close(norm.energy(general, specific)[swapped], norm.energy(specific, general)[swapped])
    drawn = random.is_swapped(general, specific)
    assert 0.4 < drawn.float().mean() < 0.6
    assert drawn.equal(random.is_swapped(general, specific))
    assert (drawn == swapped).float().mean() < 0.6
    moved = random.is_swapped(general + 1e-4 * torch.randn(400, 16, generator=generator), specific)
    assert 0.3 < (moved == drawn).float().mean() < 0.7


def test_entail_reward_without_a_lower_bound_of_the_loss_is_rejected() -> None:
    with pytest.raises(UserError, match="entail_reward"):
        small_model("poinclip", entail_reward=1.01)
    assert small_model("poinclip", entail_reward=1.0)(small_batch()).loss.isfinite()


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_features_give_a_finite_float32_loss(name: str) -> None:
    model, batch = small_model(name), small_batch()
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(batch)
    assert losses.loss.dtype == torch.float32
    assert losses.loss.item() == pytest.approx(model(batch).loss.item(), rel=0.05)


def test_model_name_of_an_unregistered_class_is_an_error() -> None:
    class OtherMERU(MERU):
        pass

    assert model_name(small_model("meru")) == "meru"
    with pytest.raises(ValueError, match=r"OtherMERU is not registered; add it to trainer.models.registry.MODELS"):
        model_name(OtherMERU(small_model("meru").config))


def test_initial_temperature_is_0_07() -> None:
    assert small_model("meru").logit_scale.item() == pytest.approx(math.log(1 / 0.07))


@pytest.mark.parametrize("name", ["hycoclip", "phyclip", "uncha"])
def test_a_phrase_that_is_its_caption_has_a_spike_of_the_gradient_unless_it_has_no_weight(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    image, text, box_image, box_text = 0.6 * torch.randn(4, 32, 16, generator=generator)
    box_text[0] = text[0]

    def largest(weight: float, equal: torch.Tensor | None) -> float:
        features = box_text.clone().requires_grad_()
        rows = {"image": image, "text": text, "box_image": box_image, "box_text": features}
        streams = named_streams(rows)
        pairs = Batch(streams={**streams, "box_text": streams["box_text"]._replace(equal=equal)})
        small_model(name, equal_phrase_weight=weight).losses(pairs).loss.backward()
        assert features.grad is not None
        norms = features.grad.norm(dim=1)
        return float(norms[0] / norms.median())

    equal = torch.arange(32) == 0
    assert largest(1.0, equal) == largest(1.0, None)  # the authors' rule
    assert largest(0.0, ~equal) > 20
    assert largest(0.0, equal) < 3
    assert largest(0.5, equal) == pytest.approx(largest(1.0, equal) / 2, rel=0.1)
