"""Models compute on the device of their batch and never wait for it: on PyTorch's "meta" device, both are errors."""

from typing import Any

import pytest
import torch

from tests.trainer.small import NAMES, small_batch, small_model, with_boxes

OTHERS: dict[str, dict[str, Any]] = {"phyclip": {"factor_dim": 8}}


@pytest.mark.parametrize(
    ("owned", "loss_chunk"),
    [
        (True, 2**10),
        *(pytest.param(*case, marks=pytest.mark.rest) for case in ((False, None), (False, 2**10), (True, None))),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_creates_no_tensor_on_another_device_and_reads_no_value(
    name: str, owned: bool, loss_chunk: int | None
) -> None:
    model = small_model(name, loss_chunk=loss_chunk, **OTHERS.get(name, {})).to("meta")
    owner = torch.arange(8) if owned else None
    batch = with_boxes(small_batch(8), small_batch(8), owner).to("meta")
    losses = model.losses(model.features(batch))  # not model(batch): autocast does not support this device
    losses.loss.backward()
    model.clamp_parameters()
    for value in (losses.loss, *losses.terms.values(), *(p.grad for p in model.parameters() if p.requires_grad)):
        assert value is not None
        assert value.is_meta


def test_a_model_with_a_tensor_on_another_device_is_an_error() -> None:
    model = small_model("meru").to("meta")
    model.register_buffer("pixel_mean", torch.zeros(3, 1, 1), persistent=False)
    with pytest.raises(RuntimeError, match="device"):
        model.features(small_batch(8).to("meta"))
