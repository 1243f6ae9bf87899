from typing import Any

import open_clip
import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.tiny_open_clip import ARCHITECTURES, register, tiny
from trainer.encoders.build import build_image_encoder, build_text_encoder
from trainer.encoders.config import ImageConfig, TextConfig
from trainer.encoders.open_clip_towers import architecture_sizes
from trainer.encoders.text import StateSource
from trainer.text.tokenizer import openai_tokenizer

CAPTIONS = ["a dog", "Two cats &amp; one naïve bird.", "words " * 20, ""]


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> None:
    register(tmp_path_factory.mktemp("architectures"))


def text_config(name: str, **fields: Any) -> TextConfig:
    return TextConfig(name=f"open_clip/{name}", **{**architecture_sizes(None, f"open_clip/{name}")["text"], **fields})


def copy_weights(theirs: Any, tower: Any, prefix: str) -> Any:
    """Load the entries under `prefix` of open_clip's model into our tower."""
    state = {key.removeprefix(prefix): value for key, value in theirs.state_dict().items() if key.startswith(prefix)}
    tower.load_state_dict({key: state[key] for key in tower.state_dict()})
    return tower.eval()


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_projected_image_features_equal_those_of_open_clip(name: str) -> None:
    theirs, size_px = tiny(name), ARCHITECTURES[name]["vision_cfg"]["image_size"]
    tower = copy_weights(theirs, build_image_encoder(ImageConfig(name=f"open_clip/{name}", size_px=size_px)), "visual.")
    images = torch.rand(3, 3, size_px, size_px)
    features, visual = tower(images), theirs.visual
    assert features.shape == (3, tower.num_features)
    match name:
        case "tiny-vit":
            projected = features @ visual.proj
        case "tiny-timm":
            projected = visual.head.proj(features)
        case "tiny-classifier":
            projected = visual.trunk.head.fc(features)
        case _:
            projected = features  # the attention pool includes the projection
    torch.testing.assert_close(projected, theirs.encode_image(images))
    assert all(key in visual.state_dict() for key in tower.projection_keys)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_projected_text_features_equal_those_of_open_clip_with_any_padding(name: str) -> None:
    theirs = tiny(name)
    text = theirs.text if ARCHITECTURES[name].get("custom_text") else theirs
    prefix = "text." if text is not theirs else ""
    tower = copy_weights(theirs, build_text_encoder(text_config(name)), prefix)
    expected = theirs.encode_text(open_clip.get_tokenizer(name)(CAPTIONS))
    for captions, rows in ((CAPTIONS, slice(None)), (CAPTIONS[:1], slice(1))):
        features = tower(openai_tokenizer(12)(captions))
        torch.testing.assert_close(features @ text.text_projection, expected[rows])


@pytest.mark.parametrize("name", ["tiny-vit", "tiny-timm"])
def test_token_states_are_those_of_the_selected_source(name: str) -> None:
    tower: Any = build_text_encoder(text_config(name)).eval()
    ids = openai_tokenizer(12)(CAPTIONS[:2])
    length, blocks = ids.shape[1], []  # input and output of each block
    for block in tower.transformer.resblocks:
        block.register_forward_hook(lambda _, inputs, output: blocks.append((inputs[0], output)))
    of_block, of_tower = tower(ids, StateSource(kind="block", block=1)), tower(ids, StateSource())
    first, second = blocks[:2]
    torch.testing.assert_close(of_block.initial, second[0][:, :length])
    torch.testing.assert_close(of_block.contextual, second[1][:, :length])
    torch.testing.assert_close(of_tower.initial, first[0][:, :length])
    torch.testing.assert_close(of_tower.contextual, tower.ln_final(second[1])[:, :length])
    torch.testing.assert_close(of_tower.pooled, tower(ids))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("ViT-B-33", {}, "text.name open_clip/ViT-B-33: open_clip has no such model"),
        ("ViT-B-16-SigLIP", {}, "needs another tokenizer"),
        ("roberta-ViT-B-32", {}, "hf_model_name roberta-base"),
        ("coca_ViT-B-32", {}, "appends a class token"),
        (
            "tiny-classifier",
            {},
            "set model.text.context_length=12 model.text.width=24 model.text.layers=2 model.text.heads=3",
        ),
    ],
)
def test_unsupported_text_tower_is_refused(name: str, fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_text_encoder(TextConfig(name=f"open_clip/{name}"))


def test_unknown_text_tower_is_named_in_the_error() -> None:
    with pytest.raises(UserError, match=r"name is 'ViT-B-32'; give open_clip/NAME"):
        TextConfig(name="ViT-B-32")
