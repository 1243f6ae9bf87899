"""Hyper3-CLIP's layout: a folder with renamed entries gives the points of the model that they come from."""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
import yaml
from safetensors.torch import save_file

from tests.trainer.tiny_transformers import tiny_encoder
from trainer.checkpoints import hyper3
from trainer.checkpoints.hyper3 import IMAGE, OWN_TEXT, TEXT
from trainer.checkpoints.model import LoadedModel, load_model
from trainer.models.hyper3 import Hyper3CLIP
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
    [
        ("text_model_name", "openai/other", "the text tower openai/other is not known"),
        ("embed_dim", None, "'embed_dim' is missing"),
        ("projection_hidden_dim", 64, "is not supported"),
    ],
)
def test_a_folder_of_another_layout_is_named(tmp_path: Path, key: str, value: object, message: str) -> None:
    config = {
        "vision_backbone": "vit_tiny_patch16_224",
        "embed_dim": 16,
        "curv_init": 1.0,
        "text_config": None if key == "text_model_name" else {"model_type": "clip_text_model"},
        key: value,
    }
    config = {name: item for name, item in config.items() if item is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


NAME = "openai/clip-vit-base-patch32"
TINY = {
    "model_type": "clip_text_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "eos_token_id": 49407, "bos_token_id": 49406, "pad_token_id": 1,
}  # fmt: skip
SETTINGS = {
    "vision_backbone": "vit_tiny_patch16_224", "vision_global_pool": "token", "vision_sincos2d_pos": True,
    "vision_norm_layer": "layer_norm", "text_model_name": NAME, "embed_dim": 16, "curv_init": 1.0, "learn_curv": True,
    "query_pooling": True, "query_num_heads": 3, "query_mlp_ratio": 4.0,
}  # fmt: skip


class Authors(torch.nn.Module):
    """A model with the entries of the authors' checkpoints, from timm, transformers and torch alone."""

    def __init__(self) -> None:
        super().__init__()
        norm = {"norm_layer": torch.nn.LayerNorm, "num_classes": 0, "global_pool": "token"}
        self.vision_encoder = torch.nn.ModuleDict({"backbone": timm.create_model("vit_tiny_patch16_224", **norm)})
        text: Any = transformers.CLIPTextModel(transformers.CLIPTextConfig(**TINY))
        self.text_encoder = torch.nn.ModuleDict({"backbone": text})
        self.image_proj, self.text_proj = torch.nn.Linear(192, 16), torch.nn.Linear(32, 16)
        parts = {"text_query_proj": torch.nn.Linear(32, 192), "mlp_norm": torch.nn.LayerNorm(192)}
        parts["cross_attention"] = torch.nn.MultiheadAttention(192, 3, batch_first=True)
        mlp = torch.nn.Sequential(torch.nn.Linear(192, 768), torch.nn.GELU(), torch.nn.Linear(768, 192))
        self.query_pooling = torch.nn.ModuleDict({**parts, "pool_mlp": mlp})
        scalars = ("global_logit_scale", "local_logit_scale", "global_local_logit_scale")
        for name in (*scalars, "visual_alpha", "textual_alpha", "log_curv"):
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(0.25)))


def write_saved(path: Path, model: Authors, **settings: object) -> None:
    """Write a model as the authors' code does: into a folder, or into a training checkpoint."""
    state, config = {key: value.detach() for key, value in model.state_dict().items()}, {**SETTINGS, **settings}
    if path.suffix == ".pt":
        rng = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),  # noqa: NPY002
            "torch": torch.get_rng_state(),
        }
        sections = {"model": config, "data": {"image_size": 224, "max_text_length": 77, "type": "processed_grit"}}
        torch.save({"step": 7, "model": state, "config": sections, "rng_by_rank": [rng]}, path)
        return
    path.mkdir()
    save_file(state, path / "model.safetensors")
    (path / "config.yaml").write_text(yaml.safe_dump({**config, "image_size": 224, "max_text_length": 77}))


@pytest.mark.parametrize("file", ["folder", "checkpoint_step_7.pt"])
def test_what_the_authors_code_saves_gives_the_points_of_their_towers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(hyper3, "TEXT_TOWERS", {NAME: TINY})
    torch.manual_seed(3)
    authors = Authors().eval()
    with torch.no_grad():  # layer norms of 1 and 0 do not show their epsilon
        for name, parameter in authors.named_parameters():
            parameter.add_(0.02 * torch.randn_like(parameter) if "norm" in name else 0)
    write_saved(tmp_path / file, authors)
    found = load_model(tmp_path / file)
    assert isinstance(found.model, Hyper3CLIP)
    images, texts = torch.rand(2, 3, 224, 224), ["a cat!", "wow ! the dog of a box"]
    with torch.no_grad():
        pixels = (images - found.model.pixel_mean) / found.model.pixel_std * 1e-3  # small ones show the epsilon
        expected = authors.image_proj(authors.vision_encoder["backbone"](pixels))
        own = found.model.visual_proj(found.model.visual(pixels))
        torch.testing.assert_close(own, expected)
        for text in texts:
            ids = torch.tensor([found.tokenizer.encode(text)])
            state = authors.text_encoder["backbone"](input_ids=ids).pooler_output
            batch = found.tokenizer([text, "a longer text of many more words"])  # padded
            torch.testing.assert_close(found.model.text_features(batch)[:1], authors.text_proj(state))
    mine = found.model.query_pooling.state_dict()
    assert torch.equal(mine["attention.in_proj_weight"], authors.query_pooling["cross_attention"].in_proj_weight)
    assert torch.equal(mine["mlp.2.bias"], authors.query_pooling["pool_mlp"][2].bias)
    assert found.model.get_parameter("global_local_logit_scale") == 0.25


def test_a_training_checkpoint_with_code_in_it_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.getcwd, ()

    torch.save({"model": {}, "config": {"model": SETTINGS}, "rng_by_rank": [Evil()]}, tmp_path / "last.pt")
    with pytest.raises(ValueError, match=r"must contain only tensors, but it refers to posix\.getcwd"):
        load_model(tmp_path / "last.pt")


def test_a_pooling_of_another_size_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyper3, "TEXT_TOWERS", {NAME: TINY})
    write_saved(tmp_path / "folder", Authors(), query_mlp_ratio=2.0)
    with pytest.raises(ValueError, match="another MLP is not supported"):
        load_model(tmp_path / "folder")
