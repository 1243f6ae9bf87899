"""Towers with initial weights of open_clip."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.small import NAMES, most_in_rest, small_levels, small_trees
from tests.trainer.tiny_open_clip import register, save, tiny
from trainer.batch import Batch, Stream, named_streams
from trainer.checkpoints.model import load_model, save_model
from trainer.config import TrainConfig, load_config
from trainer.data.preprocess import PreprocessConfig
from trainer.text.tokenizer import openai_tokenizer
from trainer.training.accumulate import checkpoint_blocks, set_micro_batch, tower_blocks
from trainer.training.build import build_tokenizer, new_model

FORMS = ("safetensors", "state dict", "training checkpoint", "folder")
CAPTIONS = ["a dog", "two cats and a red bird", "a red house"]


@pytest.fixture(scope="module", autouse=True)
def open_clip_lists_the_tiny_architectures(tmp_path_factory: pytest.TempPathFactory) -> None:
    register(tmp_path_factory.mktemp("architectures"))


def tower_config(weights: Path | str | None, *others: str, model: str = "meru", name: str = "tiny-vit") -> TrainConfig:
    towers = [f"model.{part}.name=open_clip/{name}" for part in ("image", "text")]
    files = [] if weights is None else [f"model.{part}.weights={weights}" for part in ("image", "text")]
    return load_config([f"model_name={model}", "output=out", "shards=in", *towers, *files, *others])


def small_batch() -> Batch:
    ids, generator = openai_tokenizer(12)(CAPTIONS * 2), torch.Generator().manual_seed(0)
    images = torch.rand(6, 3, 16, 16, generator=generator)
    boxes = {"box_image": images.flip(0), "box_text": openai_tokenizer(12)(["a dog", "bird"] * 3)}
    text = Stream(ids, "text", syntax=small_trees(6, generator))
    streams = {"text": text, "levels": small_levels(ids), **named_streams({"image": images, **boxes})}
    return Batch(streams=streams)


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_loaded_from_every_form_that_open_clip_saves(tmp_path: Path, form: str) -> None:
    reference = tiny("tiny-vit")
    model = new_model(tower_config(save(reference, "tiny-vit", tmp_path, form))).eval()
    batch = small_batch()
    pixels = (batch["image"].rows - model.pixel_mean) / model.pixel_std
    with torch.no_grad():
        torch.testing.assert_close(model.visual(pixels) @ reference.visual.proj, reference.encode_image(pixels))
        padded = torch.nn.functional.pad(batch["text"].rows, (0, 12 - batch["text"].rows.shape[1]))
        text_features = model.textual(batch["text"].rows) @ reference.text_projection
        torch.testing.assert_close(text_features, reference.encode_text(padded))


def test_fields_of_a_text_tower_replace_those_of_its_architecture() -> None:
    config = tower_config(None, "model.text.kwargs={layers: 1, pool_type: last}")
    assert config.model.text.layers == 1
    textual: Any = new_model(config).textual
    assert len(textual.transformer.resblocks) == 1
    assert textual.pool_type == "last"
    with pytest.raises(UserError, match=r"model\..*unexpected keyword argument 'colour'"):
        tower_config(None, "model.text.kwargs={colour: 1}")


def test_positions_of_a_text_tower_are_stretched_for_longer_captions(tmp_path: Path) -> None:
    weights = save(tiny("tiny-vit"), "tiny-vit", tmp_path, "safetensors")
    model = new_model(tower_config(weights, "model.text.context_length=30", "model.text.stretch_after=5")).eval()
    reference = new_model(tower_config(weights)).eval()
    ids = openai_tokenizer(30)(["a dog", "words " * 40])
    assert ids.shape[1] == 30
    assert model.textual(ids).shape == (2, reference.textual.num_features)
    torch.testing.assert_close(model.textual(ids[:1, :4]), reference.textual(ids[:1, :4]))


@pytest.mark.parametrize(
    "name",
    most_in_rest(
        "hycoclip syntax_meru", [name for name in NAMES if name != "hyper3"]
    ),  # pools patches of timm's towers
)
def test_every_model_trains_with_frozen_towers_and_loads_without_their_weight_files(tmp_path: Path, name: str) -> None:
    weights = save(tiny("tiny-vit"), "tiny-vit", tmp_path, "safetensors")
    frozen = ("model.image.frozen=true", "model.text.frozen=true", "model.embed_dim=16")
    config = tower_config(weights, *frozen, model=name)
    model, batch = new_model(config), small_batch()
    model(batch).loss.backward()
    trained = {key for key, parameter in model.named_parameters() if parameter.grad is not None}
    assert {"visual_proj.weight", "textual_proj.weight"} <= trained
    assert not any(key.startswith(("visual.", "textual.")) for key in trained)
    save_model(
        tmp_path / "model", model, tokenizer=build_tokenizer(config), preprocess=PreprocessConfig(size_px=16), record={}
    )
    weights.unlink()
    loaded = load_model(tmp_path / "model")
    image, text = (replace(tower, weights=weights.name) for tower in (model.config.image, model.config.text))
    assert loaded.model.config == replace(model.config, image=image, text=text)  # the folders are left out
    model.eval()
    torch.testing.assert_close(loaded.model.encode_image(batch["image"].rows), model.encode_image(batch["image"].rows))
    torch.testing.assert_close(loaded.model.encode_text(batch["text"].rows), model.encode_text(batch["text"].rows))


def test_sizes_are_those_of_the_architecture_unless_they_are_set() -> None:
    config = load_config(
        ["output=o", "shards=s", "model.text.name=open_clip/ViT-L-14", "model.image.name=open_clip/RN50x4"]
    )
    assert (config.model.text.width, config.model.text.heads, config.model.image.size_px) == (768, 12, 288)
    assert tower_config(None, "model.image.size_px=32").model.image.size_px == 32


def test_recomputed_activations_give_the_same_gradients() -> None:
    gradients = []
    for saves_memory in (False, True):
        torch.manual_seed(0)
        model = new_model(tower_config(None, "model.embed_dim=16"))
        assert len(tower_blocks(model)) == 4
        if saves_memory:
            checkpoint_blocks(model)
            set_micro_batch(model, 2)
        model(small_batch()).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.text.name=open_clip/ViT-B-33"], "model.text.name open_clip/ViT-B-33: open_clip has no such model"),
        (["model.text.width=24"], r"sizes differ from the architecture's; set model\.text\.width=16"),
        (["model.image.name=open_clip/tiny-resnet"],
         r"does not fit the image tower of open_clip/tiny-resnet: \d+ entries missing"),
        (["model.text.name=open_clip/tiny-classifier"],
         r"does not fit the text tower of open_clip/tiny-classifier: .* is \["),
        (["model.image.name=vit_small"], r"weights is for networks of timm and open_clip; set model\.image\.name"),
        (["model.text.weights=no/such/file.pt"], r"file\.pt is neither a file or folder, nor a tag of tiny-vit"),
        (["model.image.name=open_clip/ViT-B-32", "model.image.weights=openai"], "use open_clip/ViT-B-32-quickgelu"),
        (["model_name=syntax_meru", "model.word_states=attention"], "word_states=attention"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_an_error_of_one_line(tmp_path: Path, overrides: list[str], message: str) -> None:
    weights = save(tiny("tiny-vit"), "tiny-vit", tmp_path, "safetensors")
    with pytest.raises(UserError, match=message) as error:
        new_model(tower_config(weights, *overrides))
    assert "\n" not in str(error.value)


def test_a_configuration_of_another_network_beside_the_weights_is_an_error(tmp_path: Path) -> None:
    folder = save(tiny("tiny-vit"), "tiny-vit", tmp_path, "folder")
    saved: Any = json.loads((folder / "open_clip_config.json").read_text())
    saved["model_cfg"]["quick_gelu"] = False
    (folder / "open_clip_config.json").write_text(json.dumps(saved))
    with pytest.raises(UserError, match="has a different quick_gelu than open_clip/tiny-vit"):
        new_model(tower_config(folder))
    saved["model_cfg"]["quick_gelu"] = True
    saved["model_cfg"]["vision_cfg"]["head_width"] = 4
    (folder / "open_clip_config.json").write_text(json.dumps(saved))
    with pytest.raises(UserError, match="has a different head_width than open_clip/tiny-vit"):
        new_model(tower_config(folder))


def test_a_tag_is_downloaded_and_must_be_a_safetensors_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"hf_hub": "someone/tiny/"}
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda name, tag: {**known, "quick_gelu": True})
    for form, fits in (("safetensors", True), ("state dict", False)):
        path = save(tiny("tiny-vit"), "tiny-vit", tmp_path, form)
        monkeypatch.setattr(open_clip, "download_pretrained", lambda cfg, path=path: str(path))
        if fits:
            new_model(tower_config("a_tag"))
        else:
            with pytest.raises(UserError, match=r"open_clip has a_tag only as weights\.pt"):
                new_model(tower_config("a_tag"))
        path.unlink()


@pytest.mark.parametrize("kind", ["pickle", "TorchScript", "cut off"])
def test_weight_files_with_code_are_not_executed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "evil.pt").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    if kind == "TorchScript":  # as OpenAI's own files
        torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "evil.pt")
    elif kind == "cut off":
        torch.save({"a": torch.zeros(1000)}, tmp_path / "evil.pt")
        (tmp_path / "evil.pt").write_bytes((tmp_path / "evil.pt").read_bytes()[:2000])
    with pytest.raises(UserError, match=r"^model\.image\.weights: .*evil\.pt must contain only tensors"):
        new_model(tower_config(tmp_path / "evil.pt"))
    assert not (tmp_path / "ran").exists()
