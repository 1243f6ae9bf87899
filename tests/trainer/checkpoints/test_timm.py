"""Image towers of timm with initial weights from a local file."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from hypergrit_common.errors import UserError
from tests.trainer.small_run import SMALL
from trainer.config import TrainConfig, load_config
from trainer.training.build import new_model

SIZES = {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8}
VIT = "model.image.kwargs={embed_dim: 32, depth: 2, num_heads: 2, patch_size: 8, img_size: 16}"
RESNET = "model.image.kwargs={layers: [1, 1, 1, 1], channels: [8, 16, 24, 32]}"


def tower_config(*others: str) -> TrainConfig:
    sizes = [item for item in SMALL if not item.startswith("model.image.kwargs")]
    return load_config([*sizes, "output=out", "shards=in", *others])


def save(name: str, path: Path, **kwargs: Any) -> Any:
    network = timm.create_model(name, num_classes=10, **kwargs)
    state = {key: value.contiguous() for key, value in network.state_dict().items()}
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": state}, path)
    return network.eval()


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_of_a_timm_network_are_loaded_without_its_classifier(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    network = save("resnet10t", path, layers=[1, 1, 1, 1], channels=[8, 16, 24, 32])
    config = tower_config("model.image.name=resnet10t", RESNET, f"model.image.weights={path}")
    images = torch.rand(2, 3, 16, 16)
    expected = network.forward_head(network.forward_features(images), pre_logits=True)
    torch.testing.assert_close(new_model(config).eval().visual(images), expected)


def test_positions_of_a_vision_transformer_fit_another_image_size(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    network = save("vit_tiny_patch16_224", path, img_size=32, **SIZES)
    arguments = ("model.image.name=vit_tiny_patch16_224", VIT, f"model.image.weights={path}")
    tower: Any = new_model(tower_config(*arguments)).visual
    assert torch.equal(tower.blocks[1].mlp.fc1.weight, network.blocks[1].mlp.fc1.weight)
    assert tower.pos_embed.shape == (1, 1 + 4, 32)
    assert torch.equal(tower.cls_token, network.cls_token)


def test_files_that_do_not_fit_or_hold_code_are_errors(tmp_path: Path) -> None:
    arguments = ("model.image.name=resnet10t", RESNET)
    with pytest.raises(UserError, match=r"model\.image\.weights: .*none.pth does not exist"):
        new_model(tower_config(*arguments, f"model.image.weights={tmp_path / 'none.pth'}"))
    save("resnet10t", tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"other.pth cannot be loaded into resnet10t"):
        new_model(tower_config(*arguments, f"model.image.weights={tmp_path / 'other.pth'}"))
    torch.save({"state_dict": Path}, tmp_path / "code.pth")
    with pytest.raises(UserError, match=r"code.pth cannot be loaded into resnet10t"):
        new_model(tower_config(*arguments, f"model.image.weights={tmp_path / 'code.pth'}"))
