"""EuCLIP: loss and gradients in float64 against a computation with numpy, and its settings."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from tests.trainer.small import overfit, small_batch, small_model
from trainer.batch import Batch, named_streams
from trainer.models.euclip import EuCLIP

Array = NDArray[np.float64]


def loss_by_hand(images: Array, texts: Array, log_scale: float, weight: float = 0.2, k: float = 0.1) -> float:
    """The loss of features [b d]: cross entropies of squared distances, and the angles of texts to their images."""
    x, y = images / math.sqrt(images.shape[1]), texts / math.sqrt(texts.shape[1])
    b, total = len(x), 0.0
    logits = [[-math.exp(log_scale) * float(((p - q) ** 2).sum()) for q in y] for p in x]
    for i in range(b):
        for row in (logits[i], [line[i] for line in logits]):
            total += (math.log(sum(map(math.exp, row))) - row[i]) / (2 * b)
        apex, step = y[i], x[i] - y[i]
        angle = math.acos(float(apex @ step) / math.sqrt(float(apex @ apex)) / math.sqrt(float(step @ step)))
        total += weight / b * max(0.0, angle - math.asin(min(1.0, k / math.sqrt(float(apex @ apex)))))
    return total


@pytest.mark.parametrize("chunk", [None, 40])
def test_loss_and_gradients_are_those_of_the_formula(chunk: int | None) -> None:
    model = small_model("euclip", loss_chunk=chunk).double()
    generator = torch.Generator().manual_seed(3)
    # Images of four texts lie in their cones, whose energy and its gradient are 0.
    text = torch.randn(9, 16, generator=generator, dtype=torch.float64)
    image = torch.randn(9, 16, generator=generator, dtype=torch.float64)
    image[:4] = 2 * text[:4] + 0.01 * image[:4]
    inputs = [image.requires_grad_(), text.requires_grad_(), model.logit_scale]
    with torch.no_grad():
        model.logit_scale.fill_(0.4)
    losses = model.losses(Batch(streams=named_streams({"image": image, "text": text})))
    losses.loss.backward()
    numbers: list[Array] = [value.detach().numpy().copy() for value in inputs]
    assert losses.loss.item() == pytest.approx(loss_by_hand(numbers[0], numbers[1], 0.4), rel=1e-10)
    assert (losses.energies["text_image"] == 0).tolist() == [True] * 4 + [False] * 5
    for which, value in enumerate(inputs):
        assert value.grad is not None
        slopes = np.zeros(value.numel())
        for entry in range(value.numel()):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [part.copy() for part in numbers]
                moved[which].reshape(-1)[entry] += step
                sides.append(loss_by_hand(moved[0], moved[1], float(moved[2])))
            slopes[entry] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(value.grad.numpy().reshape(-1), slopes, atol=1e-9)


def test_the_scale_of_the_lift_is_fixed_and_no_curvature_is_learned() -> None:
    model = small_model("euclip")
    assert isinstance(model, EuCLIP)
    names = {name for name, _ in model.named_parameters() if "." not in name}
    assert names == {"logit_scale"}
    features = torch.randn(2, 16)
    torch.testing.assert_close(model.lift_image(features), features / 4)
    assert set(model(small_batch()).terms) == {"contrastive", "entailment", "logit_scale"}


def test_training_puts_images_into_the_cones_of_their_texts_and_keeps_the_scale_at_one_or_more() -> None:
    model, batch = small_model("euclip", min_radius=0.3), small_batch()
    first, last = model(batch), overfit(model, batch, steps=100)
    assert last.terms["entailment"] < 0.5 * first.terms["entailment"]
    with torch.no_grad():
        model.logit_scale.fill_(-3)
    model.clamp_parameters()
    assert model.pair_scale() == 1


@pytest.mark.parametrize("settings", [{"temperature_init": 1.5}, {"max_logit_scale": 0.5}])
def test_a_scale_below_one_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        small_model("euclip", **settings)
