"""The towers on each device, against float64 on the CPU."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.devices import DEVICES, GPU
from trainer.encoders.build import build_image_encoder, build_text_encoder
from trainer.encoders.config import ImageConfig, TextConfig

SIZES = {"embed_dim": 64, "depth": 2, "num_heads": 2, "patch_size": 8}


def image_tower() -> tuple[nn.Module, Tensor]:
    tower = build_image_encoder(ImageConfig(size_px=32, kwargs=SIZES))
    return tower, torch.rand(5, 3, 32, 32)


def text_tower() -> tuple[nn.Module, Tensor]:
    tower = build_text_encoder(TextConfig(vocab_size=50, context_length=12, width=64, layers=2, heads=2))
    ids = torch.randint(1, 49, (5, 9))
    ids[torch.arange(5), torch.tensor([8, 3, 5, 8, 1])] = 49
    return tower, ids


Case = Callable[[], tuple[nn.Module, Tensor]]
TOWERS = pytest.mark.parametrize("case", [image_tower, text_tower])


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double().cpu() - expected).norm() / expected.norm())


def run(tower: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Features, and the gradients of all parameters."""
    features = tower(rows)
    (features.double() ** 2).sum().backward()
    return features, torch.cat([p.grad.flatten() for p in tower.parameters() if p.grad is not None])


@pytest.fixture
def exact(case: Case) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A tower and its input in float32, and its features and gradients in float64."""
    torch.manual_seed(0)
    tower, rows = case()
    precise = rows.double() if rows.is_floating_point() else rows
    features, gradients = run(copy.deepcopy(tower).double(), precise)
    return tower, rows, features.detach(), gradients


@TOWERS
@pytest.mark.parametrize("device", DEVICES)
def test_features_and_gradients_in_float32_are_those_in_float64(
    exact: tuple[nn.Module, Tensor, Tensor, Tensor], device: str
) -> None:
    tower, rows, features, gradients = exact
    found = run(tower.to(device), rows.to(device))
    assert relative_error(found[0], features) < 1e-5
    assert relative_error(found[1], gradients) < 1e-5


@TOWERS
@pytest.mark.parametrize("device", DEVICES)
def test_features_and_gradients_in_bf16_are_near_those_in_float64(
    exact: tuple[nn.Module, Tensor, Tensor, Tensor], device: str
) -> None:
    tower, rows, features, gradients = exact
    with torch.autocast(device, torch.bfloat16):
        found = run(tower.to(device), rows.to(device))
    assert 1e-5 < relative_error(found[0], features) < 2e-2  # above: it is bf16
    assert relative_error(found[1], gradients) < 4e-2


@TOWERS
@pytest.mark.parametrize("device", [GPU])
def test_compiled_blocks_give_the_same_features_and_gradients(
    exact: tuple[nn.Module, Tensor, Tensor, Tensor], device: str
) -> None:
    tower, rows, features, gradients = exact
    for block in getattr(tower, "blocks", None) or tower.resblocks:  # type: ignore[union-attr]
        block.forward = torch.compile(block.forward)
    found = run(tower.to(device), rows.to(device))
    assert relative_error(found[0], features) < 1e-5
    assert relative_error(found[1], gradients) < 1e-5
