"""Weights for images of another size, and state dicts within wrappers."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import interpolate

from hypergrit_common.weights import read_tensors
from tests.trainer.small import small_model
from trainer.checkpoints.model import resized
from trainer.encoders.config import ImageConfig
from trainer.models.dual_encoder import DualEncoder

TIMM = {"depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8}


def vit(size_px: int, **kwargs: object) -> DualEncoder:
    image = ImageConfig(name="vit_tiny_patch16_224", size_px=size_px, kwargs={"img_size": size_px, **TIMM, **kwargs})
    return small_model("meru", image=image)


@pytest.mark.parametrize("kwargs", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}])
@pytest.mark.parametrize(("before", "after"), [(32, 48), (48, 24)])
def test_learned_positions_are_interpolated_apart_from_the_tokens_before_the_grid(
    before: int, after: int, kwargs: dict[str, object]
) -> None:
    old, new = vit(before, **kwargs), vit(after, **kwargs)
    table = old.visual.pos_embed.detach()  # type: ignore[operator]
    side, n_kept = before // 8, table.shape[1] - (before // 8) ** 2
    found = resized(new.visual, old.state_dict(), "visual.")
    assert torch.equal(found["visual.pos_embed"][:, :n_kept], table[:, :n_kept])
    grid = table[:, n_kept:].unflatten(1, (side, side)).movedim(-1, 1)
    expected = interpolate(grid, size=after // 8, mode="bicubic", antialias=True).flatten(2).mT
    torch.testing.assert_close(found["visual.pos_embed"][:, n_kept:], expected)
    new.load_state_dict(found)
    assert torch.isfinite(new.image_features(torch.rand(1, 3, after, after))).all()


def test_biases_by_relative_positions_fit_another_size() -> None:
    kwargs = {"depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8}
    old, new = (
        small_model(
            "clip", image=ImageConfig(name="beit_base_patch16_224", size_px=n, kwargs={"img_size": n, **kwargs})
        )
        for n in (32, 48)
    )
    found = resized(new.visual, old.state_dict(), "visual.")
    name = "visual.blocks.0.attn.relative_position_bias_table"
    assert torch.equal(found[name][-3:], old.state_dict()[name][-3:])  # those of the class token
    new.load_state_dict(found)


def test_fixed_positions_are_those_of_the_new_size() -> None:
    old = small_model("meru")
    new = small_model("meru", image=ImageConfig(size_px=32, kwargs=old.config.image.kwargs))
    found = resized(new.visual, old.state_dict(), "visual.")
    assert torch.equal(found["visual.pos_embed"], new.visual.pos_embed)


def test_other_patches_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"patches of 8 pixels, and the model those of 4: .* cannot be interpolated"):
        resized(vit(32, patch_size=4).visual, vit(32).state_dict(), "visual.")


@pytest.mark.parametrize(
    "name",
    ["module.{}", "_orig_mod.{}", "module._orig_mod.{}", "_orig_mod.module.{}", "model.{}", "model.module.{}", "{}"],
)
def test_names_of_wrappers_are_removed_in_any_nesting(tmp_path: Path, name: str) -> None:
    state = small_model("clip").state_dict()
    torch.save({name.format(key): value for key, value in state.items()}, tmp_path / "weights.pth")
    assert read_tensors(tmp_path / "weights.pth").keys() == state.keys()


def test_names_of_wrappers_within_a_model_are_removed(tmp_path: Path) -> None:
    state = small_model("clip").state_dict()
    wrapped = {
        re.sub(r"(blocks\.\d+)\.", r"\1._fsdp_wrapped_module._orig_mod.", key): value for key, value in state.items()
    }
    assert wrapped.keys() != state.keys()
    torch.save({"state_dict": wrapped}, tmp_path / "weights.pth")
    assert read_tensors(tmp_path / "weights.pth").keys() == state.keys()
