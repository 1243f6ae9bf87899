"""Towers that compute again what they did not keep: the gradient is that of the whole batch."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.small import small_batch, small_model
from trainer.accumulate import blocks, checkpoint_blocks, in_chunks, set_micro_batch
from trainer.batch import Batch
from trainer.encoders.config import ImageConfig
from trainer.models.dual_encoder import DualEncoder


def gradients(model: DualEncoder, batch: Batch) -> dict[str, Tensor]:
    model.losses(model.features(batch)).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def in_double(batch: Batch) -> Batch:
    assert batch.box_images is not None
    return dataclasses.replace(batch, images=batch.images.double(), box_images=batch.box_images.double())


@pytest.mark.parametrize("name", ["clip", "phyclip", "syntax_meru"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_few_rows_at_a_time_give_the_gradient_of_the_whole_batch(name: str, rows: int) -> None:
    batch = in_double(small_batch())
    expected = gradients(small_model(name).double(), batch)
    cut = small_model(name).double()
    set_micro_batch(cut, rows)
    found = gradients(cut, batch)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, msg=key)


def test_activation_checkpointing_leaves_gradients_and_names_as_they_are() -> None:
    expected = gradients(small_model("meru"), small_batch())
    saving = small_model("meru")
    checkpoint_blocks(saving)
    found = gradients(saving, small_batch())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_what_is_computed_again_draws_the_same_random_numbers() -> None:
    tower = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    rows = torch.randn(6, 4)
    torch.manual_seed(1)
    torch.cat([tower(part) for part in rows.split(2)]).square().sum().backward()
    expected = [parameter.grad for parameter in tower.parameters()]
    tower.zero_grad()
    torch.manual_seed(1)
    in_chunks(tower, 2, False, rows).square().sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in tower.parameters()], expected)


def kept_bytes(model: DualEncoder, batch: Batch) -> int:
    """What a forward pass keeps for the backward pass."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    mine = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(batch)
    return sum(size for place, size in kept.items() if place not in mine)


def test_cutting_the_batch_keeps_a_fraction_of_the_activations() -> None:
    batch = small_batch(b=32)
    cut = small_model("hycoclip")
    set_micro_batch(cut, 4)
    assert kept_bytes(cut, batch) < kept_bytes(small_model("hycoclip"), batch) / 4


@pytest.mark.parametrize(("network", "n"), [("resnet10t", 4), ("convnext_atto", 4)])
def test_the_blocks_of_a_network_of_timm_are_found_one_by_one(network: str, n: int) -> None:
    with torch.device("meta"):
        model = small_model("clip", image=ImageConfig(name=network, size_px=64))
    assert len(blocks(model)) == n + len(model.textual.resblocks)  # type: ignore[arg-type]
