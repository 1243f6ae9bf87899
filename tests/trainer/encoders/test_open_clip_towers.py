from typing import Any

import open_clip
import pytest
import torch

from common.errors import UserError
from tests.trainer.tiny_open_clip import ARCHITECTURES, register, tiny
from trainer.encoders.build import build_image_encoder, build_text_encoder
from trainer.encoders.config import ImageConfig, TextConfig
from trainer.encoders.open_clip_towers import own_sizes
from trainer.encoders.text import StateSource
from trainer.text.tokenizer import openai_tokenizer

CAPTIONS = ["a dog", "Two cats &amp; one naïve bird.", "words " * 20, ""]


@pytest.fixture(scope="module", autouse=True)
def listed(tmp_path_factory: pytest.TempPathFactory) -> None:
    register(tmp_path_factory.mktemp("architectures"))


def text_config(name: str, **fields: Any) -> TextConfig:
    return TextConfig(name=f"open_clip/{name}", **{**own_sizes(None, f"open_clip/{name}")["text"], **fields})


def with_weights_of(theirs: Any, tower: Any, prefix: str) -> Any:
    state = {key.removeprefix(prefix): value for key, value in theirs.state_dict().items() if key.startswith(prefix)}
    tower.load_state_dict({key: state[key] for key in tower.state_dict()})
    return tower.eval()


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_image_features_are_those_that_open_clip_projects(name: str) -> None:
    theirs, size_px = tiny(name), ARCHITECTURES[name]["vision_cfg"]["image_size"]
    tower = with_weights_of(
        theirs, build_image_encoder(ImageConfig(name=f"open_clip/{name}", size_px=size_px)), "visual."
    )
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
            projected = features  # its pool projects by itself
    torch.testing.assert_close(projected, theirs.encode_image(images))
    assert all(key in visual.state_dict() for key in tower.projection)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_text_features_are_those_that_open_clip_projects_whatever_the_padding(name: str) -> None:
    theirs = tiny(name)
    text = theirs.text if ARCHITECTURES[name].get("custom_text") else theirs
    prefix = "text." if text is not theirs else ""
    tower = with_weights_of(theirs, build_text_encoder(text_config(name)), prefix)
    expected = theirs.encode_text(open_clip.get_tokenizer(name)(CAPTIONS))
    for captions, rows in ((CAPTIONS, slice(None)), (CAPTIONS[:1], slice(1))):
        features = tower(openai_tokenizer(12)(captions))
        torch.testing.assert_close(features @ text.text_projection, expected[rows])


@pytest.mark.parametrize("name", ["tiny-vit", "tiny-timm"])
def test_words_have_their_states_at_the_places_asked_for(name: str) -> None:
    tower: Any = build_text_encoder(text_config(name)).eval()
    ids = openai_tokenizer(12)(CAPTIONS[:2])
    length, seen = ids.shape[1], []
    for block in tower.transformer.resblocks:
        block.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    inside, outside = tower(ids, StateSource(kind="block", block=1)), tower(ids, StateSource())
    first, second = seen[:2]
    torch.testing.assert_close(inside.initial, second[0][:, :length])
    torch.testing.assert_close(inside.contextual, second[1][:, :length])
    torch.testing.assert_close(outside.initial, first[0][:, :length])
    torch.testing.assert_close(outside.contextual, tower.ln_final(second[1])[:, :length])
    torch.testing.assert_close(outside.sentence, tower(ids))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("ViT-B-33", {}, "text.name open_clip/ViT-B-33: no model of open_clip"),
        ("ViT-B-16-SigLIP", {}, "another tokenizer's tokens"),
        ("roberta-ViT-B-32", {}, "hf_model_name roberta-base"),
        ("coca_ViT-B-32", {}, "a token of its own"),
        (
            "tiny-classifier",
            {},
            "set model.text.context_length=12 model.text.width=24 model.text.layers=2 model.text.heads=3",
        ),
    ],
)
def test_a_text_tower_that_is_not_to_be_had_is_refused_by_name(name: str, fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_text_encoder(TextConfig(name=f"open_clip/{name}"))


def test_a_misspelt_text_tower_is_named() -> None:
    with pytest.raises(UserError, match=r"name is 'ViT-B-32'; give open_clip/NAME"):
        TextConfig(name="ViT-B-32")
