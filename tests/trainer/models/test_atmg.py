"""ATMG: logits and scores by the rules of its released code, computed pair by pair, and what it does not allow."""

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.small import overfit, small_batch, small_model
from trainer.evaluation.metrics.ranking import predict
from trainer.geometry import lorentz
from trainer.losses.functional import contrastive
from trainer.models.atmg import ATMG


def model_and_points() -> tuple[ATMG, Tensor, Tensor]:
    """A model, and lifted points [8 16] of its small batch: images and texts."""
    model, batch = small_model("atmg"), small_batch()
    assert isinstance(model, ATMG)
    with torch.no_grad():
        return model, model.encode_image(batch["image"].rows), model.encode_text(batch["text"].rows)


def angles(model: ATMG, apexes: Tensor, points: Tensor) -> Tensor:
    """Exterior angle [b n] at each apex [b d] towards each point [n d], by the function of single pairs."""
    return lorentz.exterior_angle(apexes[:, None], points[None], model.curvature(), model.config.eps)


def test_the_loss_is_the_mean_of_two_losses_whose_angles_are_at_the_queries() -> None:
    model, images, texts = model_and_points()
    scale = model.pair_scale()
    expected = contrastive(-scale * angles(model, texts, images)) + contrastive(scale * angles(model, images, texts))
    losses = model(small_batch())
    torch.testing.assert_close(losses.loss, expected / 2)
    assert set(losses.terms) == {"contrastive", "logit_scale", "curvature"}


def test_released_scores_take_the_angles_at_the_candidates_and_the_metric_those_of_the_loss() -> None:
    model, images, texts = model_and_points()
    at_images, at_texts = angles(model, images, texts), angles(model, texts, images)
    torch.testing.assert_close(model.scores(texts, images, "released", "text"), at_images.T)
    torch.testing.assert_close(model.scores(images, texts, "released", "image"), -at_texts.T)
    torch.testing.assert_close(model.scores(texts, images, "metric", "text"), -at_texts)
    torch.testing.assert_close(model.scores(images, texts, "metric", "image"), at_images)


def test_the_score_of_a_class_is_the_mean_angle_towards_its_prompts() -> None:
    model = model_and_points()[0]
    prompts = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(1))
    features = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    every = angles(model, model.lift_image(features), model.lift_text(prompts).flatten(0, 1))
    expected = every.unflatten(1, (5, 3)).mean(-1)
    classes = model.lift_prompts(prompts)
    assert predict(model, features, classes, "released").tolist() == expected.argmax(1).tolist()
    torch.testing.assert_close(model.scores(model.lift_image(features), classes, "metric"), expected)


def test_training_puts_captions_between_the_root_and_their_images() -> None:
    model, batch = small_model("atmg"), small_batch()
    first = model(batch).loss.item()
    last = overfit(model, batch, steps=100)
    assert last.loss.item() < 0.5 * first
    at_captions = model.directed_similarity(last.points["text"], last.points["image"], "text")
    assert at_captions.argmax(1).tolist() == list(range(8))
    assert model.curv.exp().item() == pytest.approx(0.1)
    assert not model.curv.requires_grad


@pytest.mark.parametrize(("setting", "value"), [("entail_weight", 0.2), ("logits", "inner")])
def test_settings_without_an_effect_are_refused(setting: str, value: object) -> None:
    with pytest.raises(UserError, match=f"{setting} is {value}, but atmg"):
        small_model("atmg", **{setting: value})
