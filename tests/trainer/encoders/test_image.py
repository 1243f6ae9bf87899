from functools import partial
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Block

from hypergrit_common.errors import UserError
from trainer.encoders.build import build_image_encoder, sincos_positions
from trainer.encoders.config import ImageConfig


def test_small_vision_transformer_has_the_sizes_of_the_paper() -> None:
    vit = build_image_encoder(ImageConfig())
    assert vit.blocks[0].attn.num_heads == 12  # type: ignore[index, union-attr]
    assert vit.norm.eps == 1e-5  # type: ignore[union-attr]
    assert sum(p.numel() for p in vit.parameters() if not p.requires_grad) == 75_648


def test_learned_positions_are_trained_and_of_the_same_shape() -> None:
    sizes = {"embed_dim": 32, "depth": 1, "num_heads": 2, "patch_size": 8}
    fixed, learned = (
        build_image_encoder(ImageConfig(size_px=16, kwargs={**sizes, "learned_positions": is_learned}))
        for is_learned in (False, True)
    )
    assert isinstance(fixed.pos_embed, torch.nn.Parameter)
    assert isinstance(learned.pos_embed, torch.nn.Parameter)
    assert learned.pos_embed.shape == fixed.pos_embed.shape == (1, 5, 32)
    assert learned.pos_embed.requires_grad
    assert not fixed.pos_embed.requires_grad


def test_position_embeddings_encode_row_then_column_and_are_zero_for_the_class_token() -> None:
    table = sincos_positions(3, 8)[0]
    row, column = 2, 1
    token = table[1 + 3 * row + column]
    frequencies = torch.tensor([1.0, 0.01])
    expected = torch.cat([(row * frequencies).sin(), (row * frequencies).cos(),
                          (column * frequencies).sin(), (column * frequencies).cos()])  # fmt: skip
    torch.testing.assert_close(token, expected)
    assert not table[0].any()


def test_timm_network_returns_one_feature_per_image() -> None:
    kwargs = {"layers": [1, 1, 1, 1], "channels": [8, 16, 24, 32], "norm_groups": 4}
    tower = build_image_encoder(ImageConfig(name="resnet10t", size_px=32, kwargs=kwargs))
    assert tower(torch.rand(2, 3, 32, 32)).shape == (2, tower.num_features)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in tower.modules())


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("ViT-B-32", {"layers": 1, "width": 64}), ("RN50", {"layers": (1, 1, 1, 1), "width": 16})],
)
def test_open_clip_tower_returns_one_feature_per_image_without_downloading_weights(
    name: str, kwargs: dict[str, Any]
) -> None:
    tower = build_image_encoder(ImageConfig(name=f"open_clip/{name}", size_px=64, kwargs=kwargs))
    assert tower(torch.rand(2, 3, 64, 64)).shape == (2, tower.num_features)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_smal", "'vit_smal'"),
        ("open_clip/ViT-B-33", "open_clip has no such model"),
        ("open_clip/hf-hub:someone/model", "open_clip has no such model"),
        ("open_clip/local-dir:/tmp", "open_clip has no such model"),
    ],
)
def test_an_unknown_tower_is_refused(name: str, message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        build_image_encoder(ImageConfig(name=name))


def test_class_token_block_has_the_features_and_gradients_of_the_full_block() -> None:
    torch.manual_seed(0)
    kwargs = {"embed_dim": 32, "depth": 2, "num_heads": 4, "patch_size": 8}
    vit = build_image_encoder(ImageConfig(size_px=32, kwargs=kwargs)).double()
    images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    results = []
    for forward in (vit.blocks[-1].forward, partial(Block.forward, vit.blocks[-1])):  # type: ignore[index, union-attr]
        vit.blocks[-1].forward = forward  # type: ignore[index, union-attr]
        vit.zero_grad()
        features = vit(images)
        features.square().sum().backward()
        results.append([features, *(p.grad for p in vit.parameters() if p.requires_grad)])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("vit_small", {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8}),
     ("vit_tiny_patch16_224", {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8})],
)  # fmt: skip
def test_patch_dropout_leaves_out_patches_but_not_the_class_token_while_training(
    name: str, kwargs: dict[str, Any]
) -> None:
    towers = [
        build_image_encoder(ImageConfig(name=name, size_px=32, kwargs=kwargs, patch_dropout=share))
        for share in (0, 0.75)
    ]
    towers[1].load_state_dict(towers[0].state_dict())
    images, lengths = torch.rand(2, 3, 32, 32), []
    towers[1].blocks[0].register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))  # type: ignore[index, union-attr, arg-type]
    training = towers[1].train()(images)
    assert torch.equal(towers[0].eval()(images), towers[1].eval()(images))
    assert lengths == [1 + 4, 1 + 16]
    assert training.shape == (2, 32)


def test_patch_dropout_of_a_network_without_patches_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"image\.patch_dropout is for plain vision transformers"):
        build_image_encoder(ImageConfig(name="resnet10t", size_px=32, patch_dropout=0.5))
