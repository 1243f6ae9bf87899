"""Micro-batches and activation checkpointing: the gradient is that of one pass over the full batch."""

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.small import in_double, small_batch, small_model, with_boxes
from trainer.batch import Batch
from trainer.encoders.config import ImageConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.training.accumulate import checkpoint_blocks, checkpoint_chunks, set_micro_batch, tower_blocks


def gradients(model: DualEncoder, batch: Batch) -> dict[str, Tensor]:
    model.losses(model.features(batch)).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("name", ["clip", "phyclip", "syntax_meru"])
@pytest.mark.parametrize("n_rows", [1, 3])
def test_micro_batches_give_the_gradient_of_the_full_batch(name: str, n_rows: int) -> None:
    batch = in_double(small_batch())
    expected = gradients(small_model(name).double(), batch)
    model = small_model(name).double()
    set_micro_batch(model, n_rows)
    found = gradients(model, batch)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, msg=key)


@pytest.mark.parametrize("n_boxes", [0, 5])
def test_micro_batches_take_batches_with_few_boxes_or_none(n_boxes: int) -> None:
    batch = in_double(small_batch())
    boxes = batch.with_rows({name: batch[name].rows[:n_boxes] for name in ("box_image", "box_text")})
    batch = with_boxes(batch, boxes, torch.arange(n_boxes))
    expected = gradients(small_model("meru", boxes_as_pairs=True).double(), batch)
    model = small_model("meru", boxes_as_pairs=True).double()
    set_micro_batch(model, 3)
    for key, value in gradients(model, batch).items():
        torch.testing.assert_close(value, expected[key], msg=key)


def test_activation_checkpointing_does_not_change_gradients_and_names() -> None:
    expected = gradients(small_model("meru"), small_batch())
    model = small_model("meru")
    checkpoint_blocks(model)
    found = gradients(model, small_batch())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_recomputation_repeats_the_random_numbers_of_the_forward_pass() -> None:
    tower = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    rows = torch.randn(6, 4)
    torch.manual_seed(1)
    torch.cat([tower(chunk) for chunk in rows.split(2)]).square().sum().backward()
    expected = [parameter.grad for parameter in tower.parameters()]
    tower.zero_grad()
    torch.manual_seed(1)
    checkpoint_chunks(tower, 2, False, rows).square().sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in tower.parameters()], expected)


def activation_bytes(model: DualEncoder, batch: Batch) -> int:
    """Bytes that a forward pass saves for the backward pass, without the parameters."""
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        model(batch)
    return sum(size for address, size in saved.items() if address not in parameters)


def test_micro_batches_save_a_fraction_of_the_activations() -> None:
    batch = small_batch(b=32)
    model = small_model("hycoclip")
    set_micro_batch(model, 4)
    assert activation_bytes(model, batch) < activation_bytes(small_model("hycoclip"), batch) / 4


@pytest.mark.parametrize(("network", "n"), [("resnet10t", 4), ("convnext_atto", 4)])
def test_tower_blocks_finds_the_blocks_of_timm_networks(network: str, n: int) -> None:
    with torch.device("meta"):
        model = small_model("clip", image=ImageConfig(name=network, size_px=64))
    assert len(tower_blocks(model)) == n + len(model.textual.resblocks)  # type: ignore[arg-type]
