"""Settings of the papers' ablations: each changes what it names and nothing else."""

import pytest
import torch
from torch import Tensor

from tests.trainer.small import small_batch, small_model
from trainer.geometry import lorentz
from trainer.losses.functional import contrastive
from trainer.models.config import CONTRAST_TERMS, ENTAIL_TERMS
from trainer.models.hycoclip import HyCoCLIP
from trainer.models.meru import MERU
from trainer.models.phyclip import PHyCLIP


def eight_terms(model: HyCoCLIP) -> dict[str, Tensor]:
    """The terms of HyCoCLIP eq. 6 and 11, from the full matrices."""
    pairs = model.features(small_batch())
    image, text = model.lift_image(pairs["image"].rows), model.lift_text(pairs["text"].rows)
    box_image, box_text = model.lift_image(pairs["box_image"].rows), model.lift_text(pairs["box_text"].rows)
    sides = ((image, text), (text, image), (box_image, text), (box_text, image))
    cones = ((text, image, 0.7), (box_text, box_image, 0.7), (box_image, image, 1.2), (box_text, text, 1.2))
    terms = [contrastive(model.logit_scale.exp() * model.similarity(*side)) for side in sides]
    terms += [model.energy(*cone).mean() for cone in cones]
    return dict(zip((*CONTRAST_TERMS, *ENTAIL_TERMS), terms, strict=True))


@pytest.mark.parametrize("name", [*CONTRAST_TERMS, *ENTAIL_TERMS])
@pytest.mark.parametrize("weight", [0.0, 2.5])
def test_weight_of_a_term_changes_the_loss_and_gradients_by_this_term(name: str, weight: float) -> None:
    """HyCoCLIP, table 4: a quarter of the contrastive terms, and gamma = 0.1 times the entailment terms."""
    kind = "contrast_terms" if name in CONTRAST_TERMS else "entail_terms"
    model, weighted = small_model("hycoclip"), small_model("hycoclip", **{kind: {name: weight}})
    assert isinstance(model, HyCoCLIP)
    factor = 0.25 if name in CONTRAST_TERMS else 0.1
    expected = (
        sum((0.25 if key in CONTRAST_TERMS else 0.1) * value for key, value in eight_terms(model).items())
        + factor * (weight - 1) * eight_terms(model)[name]
    )
    loss = weighted(small_batch()).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()  # type: ignore[union-attr]
    for (key, found), other in zip(weighted.named_parameters(), model.parameters(), strict=True):
        assert (found.grad is None) == (other.grad is None)
        if found.grad is not None:
            torch.testing.assert_close(found.grad, other.grad, rtol=1e-3, atol=1e-5, msg=key)


def test_a_loss_without_any_contrastive_term_has_a_gradient_for_every_parameter() -> None:
    """Otherwise DistributedDataParallel waits for the gradient of the temperature."""
    model = small_model("hycoclip", contrast_terms=dict.fromkeys(CONTRAST_TERMS, 0.0))
    losses = model(small_batch())
    assert losses.terms["contrastive"] == 0
    losses.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("name", ["meru", "hycoclip", "syntax_meru"])
@pytest.mark.parametrize("chunk", [None, 20])
def test_logits_by_inner_products_are_those_of_eq_1(name: str, chunk: int | None) -> None:
    """MERU, table 4, third ablation."""
    model = small_model(name, logits="inner", loss_chunk=chunk, curv_init=0.5)
    assert isinstance(model, MERU)
    pairs = model.features(small_batch())
    image, text = model.lift_image(pairs["image"].rows), model.lift_text(pairs["text"].rows)
    times = [(1 / 0.5 + points.square().sum(-1)).sqrt() for points in (image, text)]
    inner = image @ text.T - times[0][:, None] * times[1]
    torch.testing.assert_close(model.similarity(image, text), inner)
    scale = model.logit_scale.exp()
    expected = (contrastive(scale * inner) + contrastive(scale * inner.T)) / 2
    found = small_model("meru", logits="inner", loss_chunk=chunk, curv_init=0.5).losses(pairs).terms["contrastive"]
    torch.testing.assert_close(found, expected.detach())
    assert model(small_batch()).loss.isfinite()


def test_radius_is_the_distance_from_the_root_with_either_logits() -> None:
    points = torch.randn(4, 16)
    by_distance, by_inner = (small_model("meru", logits=kind).radius(points) for kind in ("distance", "inner"))
    torch.testing.assert_close(by_inner, by_distance)
    torch.testing.assert_close(by_inner, lorentz.distance(points, torch.zeros(4, 16), torch.tensor(1.0)))


def test_fixed_curvature_is_not_trained() -> None:
    """MERU, table 4, and HyCoCLIP, table 7."""
    model = small_model("hycoclip", curv_learnable=False, curv_init=0.3)
    assert isinstance(model, HyCoCLIP)
    model(small_batch()).loss.backward()
    assert model.curv.grad is None
    assert model.curv.exp().item() == pytest.approx(0.3)


@pytest.mark.parametrize(("init", "expected"), [("released", 8**-0.5), ("paper", 16**-0.5)])
def test_alpha_init_is_that_of_the_released_code_or_of_the_paper(init: str, expected: float) -> None:
    model = small_model("phyclip", alpha_init=init)
    assert isinstance(model, PHyCLIP)
    assert [alpha.exp().tolist() for alpha in (model.visual_alpha, model.textual_alpha)] == [
        pytest.approx([expected] * 2)
    ] * 2
