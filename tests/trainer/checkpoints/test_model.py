import json
from pathlib import Path

import pytest
import torch

from tests.trainer.small import END, NAMES, small_batch, small_model
from trainer.checkpoints.model import load_model, load_state, read_weights, save_model
from trainer.checkpoints.released import from_released, to_released, write_released
from trainer.data.preprocess import PreprocessConfig
from trainer.text.tokenizer import Tokenizer

SMALL = PreprocessConfig(size_px=16, mode="squash")


def small_tokenizer() -> Tokenizer:
    """Too many tokens for the small models, which is what one test wants."""
    return Tokenizer([("a", "b")], context_length=8)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_comes_back_and_embeds_the_same(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = small_model(name), small_batch()
    monkeypatch.setattr(Tokenizer, "vocab_size", END + 1)
    save_model(tmp_path, model, tokenizer=small_tokenizer(), preprocess=SMALL, record={"seed": 0})
    loaded = load_model(tmp_path)
    assert loaded.preprocess == SMALL
    assert loaded.config["record"] == {"seed": 0}
    torch.testing.assert_close(loaded.model.encode_image(batch.images), model.encode_image(batch.images))
    torch.testing.assert_close(loaded.model.encode_text(batch.token_ids), model.encode_text(batch.token_ids))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, small_model("clip"), tokenizer=small_tokenizer(), preprocess=SMALL, record={})
    with pytest.raises(ValueError, match="the merges make 515 tokens, the model has 64"):
        load_model(tmp_path)


def test_half_precision_halves_matrices_and_keeps_scalars(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    save_model(tmp_path, small_model("meru"), tokenizer=small_tokenizer(), preprocess=SMALL, record={}, half=True)
    state = load_file(tmp_path / "model.safetensors")
    assert state["visual_proj.weight"].dtype == torch.float16
    assert state["curv"].dtype == state["pixel_mean"].dtype == state["textual.ln_final.weight"].dtype == torch.float32


@pytest.mark.parametrize("wrap", ["model", "bare", "module"])
def test_released_layouts_are_read(tmp_path: Path, wrap: str) -> None:
    model = small_model("phyclip", seed=1)
    state = to_released(model)
    assert {"curvs.1", "visual_concept_alphas.0", "curv", "textual.attn_mask"} <= state.keys()
    contents = {"model": state, "bare": state, "module": {"model": {f"module.{k}": v for k, v in state.items()}}}
    contents["model"] = {"model": state, "optimizer": {"state": {}}, "iteration": 7}
    torch.save(contents[wrap], tmp_path / "checkpoint.pth")
    other = small_model("phyclip", seed=2)
    load_state(other, read_weights(tmp_path / "checkpoint.pth"), tmp_path)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value)


def test_a_model_written_as_released_is_read_back(tmp_path: Path) -> None:
    model = small_model("hycoclip")
    write_released(tmp_path / "hycoclip.pth", model)
    assert read_weights(tmp_path / "hycoclip.pth").keys() == model.state_dict().keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["meru", "phyclip"])
def test_sizes_of_a_released_file_are_read_from_its_shapes(tmp_path: Path, name: str) -> None:
    from trainer.models.registry import MODELS, build_model

    model = build_model(name, MODELS[name].config())
    write_released(tmp_path / "model.pth", model)
    loaded = load_model(tmp_path / "model.pth", name)
    assert loaded.model.config == model.config
    assert loaded.tokenizer.vocab_size == 49_408
    with pytest.raises(ValueError, match="give model_name, one of"):
        load_model(tmp_path / "model.pth")


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not fit a meru model: 3 entries missing, such as curv"):
        load_state(small_model("meru"), small_model("clip").state_dict(), tmp_path)


def test_a_factor_that_is_missing_is_noticed() -> None:
    state = to_released(small_model("phyclip"))
    state["curvs.5"] = state.pop("curvs.1")
    with pytest.raises(ValueError, match="not a run from 0"):
        from_released(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": {"name": "hf-hub:someone/model"}}, "a model of timm"),
        ({"image": {"name": "resnet18", "kwargs": {"checkpoint_path": "x.pth"}}}, "checkpoint_path is not allowed"),
        ({"embed_dims": 3}, "embed_dims"),
        ({"embed_dim": 0}, r"model_here: config of clip: embed_dim is 0"),
    ],
)
def test_a_hostile_or_misspelt_config_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = tmp_path / "model_here"
    save_model(folder, small_model("clip"), tokenizer=small_tokenizer(), preprocess=SMALL, record={})
    config = json.loads((folder / "config.json").read_text())
    config["config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ["clip"]}, "lacks 'model', or has something else there"),
        ({"config": []}, "lacks 'config', or has something else there"),
        ({"preprocess": {"size_px": 16}}, "preprocess lacks 'mode'"),
    ],
)
def test_a_config_that_lacks_something_is_named_with_it(
    tmp_path: Path, change: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "vocab_size", END + 1)
    save_model(tmp_path, small_model("clip"), tokenizer=small_tokenizer(), preprocess=SMALL, record={})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=rf"config\.json.* {message}"):
        load_model(tmp_path)


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config.json"):
        load_model(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        load_model(tmp_path / "missing.pth")
