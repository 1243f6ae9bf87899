"""Hyper3-CLIP's layout: a folder with renamed entries gives the points of the model that they come from."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.trainer.tiny_transformers import tiny_encoder
from trainer.checkpoints.hyper3 import IMAGE, OWN_TEXT, TEXT
from trainer.checkpoints.model import LoadedModel, load_model
from trainer.models.registry import build_model, model_name

NAMES = {"visual_proj": "image_proj", "textual_proj": "text_proj", "curv": "log_curv"}


def write_folder(folder: Path, prefix: str = "", three: bool = False, **others: object) -> LoadedModel:
    """Write a folder with a tiny text tower and random weights in Hyper3-CLIP's names; return what is in it."""
    tiny_encoder("clip_text_model", folder)
    text = json.loads((folder / "config.json").read_text())
    sizes = {"vision_backbone": "vit_tiny_patch16_224", "embed_dim": 16, "curv_init": 0.7, "learn_curv": True}
    config = {**sizes, "text_config": text, "image_size": 224, "max_text_length": 20, **others}
    (folder / "config.json").write_text(json.dumps(config))
    scales = ("global_logit_scale", "local_logit_scale", "global_local_logit_scale") if three else ("logit_scale",)
    save_file({name: torch.tensor(2.0) for name in scales}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="entries missing"):
        load_model(folder)
    torch.manual_seed(0)
    from trainer.checkpoints.hyper3 import read_hyper3

    parts = read_hyper3(folder, config)
    model = build_model(model_name(parts.model), parts.model.config)
    state = {}
    for key, value in model.state_dict().items():
        if key.startswith("visual."):
            state[IMAGE + key.removeprefix("visual.")] = value
        elif key.startswith(OWN_TEXT):
            state[TEXT + prefix + key.removeprefix(OWN_TEXT).removeprefix("text_model.")] = value
        elif not key.startswith("pixel_"):
            module, dot, rest = key.partition(".")
            state[NAMES.get(module, module) + dot + rest] = value
    state["beta_clip_mlp_norm.weight"] = torch.ones(3)
    save_file({key: value.contiguous() for key, value in state.items()}, folder / "model.safetensors")
    return LoadedModel(model=model.eval(), tokenizer=parts.tokenizer, preprocess=parts.preprocess, config={})


@pytest.mark.parametrize(("prefix", "three"), [("", False), ("text_model.", True)])
def test_a_folder_in_the_layout_gives_the_points_of_its_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefix: str, three: bool
) -> None:
    expected = write_folder(tmp_path, prefix, three)
    found = load_model(tmp_path)
    assert type(found.model).__name__ == ("UNCHA" if three else "HyCoCLIP")
    assert found.preprocess.mode == "squash"
    assert "1 entries of the checkpoint are not used, such as beta_clip_mlp_norm.weight" in caplog.text
    images, texts = torch.rand(2, 3, 224, 224), found.tokenizer(["a cat", "the dog of a box"])
    with torch.no_grad():
        torch.testing.assert_close(found.model.encode_image(images), expected.model.encode_image(images))
        torch.testing.assert_close(found.model.encode_text(texts), expected.model.encode_text(texts))


def test_a_curvature_outside_its_limits_is_clamped_as_by_the_authors(tmp_path: Path) -> None:
    write_folder(tmp_path, curvature_min=1.5, curvature_max=7.0)
    assert load_model(tmp_path).model.get_parameter("curv").exp().item() == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("embed_dim", None, "'embed_dim' is missing"), ("projection_hidden_dim", 64, "is not supported")],
)
def test_a_folder_of_another_layout_is_named(tmp_path: Path, key: str, value: object, message: str) -> None:
    config = {
        "vision_backbone": "vit_tiny_patch16_224",
        "embed_dim": 16,
        "curv_init": 1.0,
        "text_config": {},
        key: value,
    }
    config = {name: item for name, item in config.items() if item is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)
