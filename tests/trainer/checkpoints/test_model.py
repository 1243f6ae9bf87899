import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hypergrit_common.errors import NotFiniteError
from tests.trainer.released_files import to_released, write_released
from tests.trainer.small import END, NAMES, most_in_rest, small_batch, small_model
from trainer.checkpoints import model as model_files
from trainer.checkpoints.model import from_released, load_model, load_state, read_weights, save_model
from trainer.data.preprocess import PreprocessConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.text.tokenizer import Tokenizer

SMALL = PreprocessConfig(size_px=16, mode="squash")


def save(folder: Path, model: DualEncoder | None = None, **more: Any) -> Path:
    """Save a model, by default a small CLIP, with a tokenizer of more tokens than small models have: 515, not 64."""
    tokenizer = Tokenizer([("a", "b")], context_length=8)
    options = {"tokenizer": tokenizer, "preprocess": SMALL, "record": {"seed": 0}, **more}
    save_model(folder, model or small_model("clip"), **options)
    return folder


@pytest.fixture
def tokens_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer has as many tokens as small models."""
    monkeypatch.setattr(Tokenizer, "vocab_size", END + 1)


@pytest.mark.usefixtures("tokens_fit")
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_loads_with_the_same_embeddings(tmp_path: Path, name: str) -> None:
    model, batch = small_model(name), small_batch()
    loaded = load_model(save(tmp_path, model))
    assert loaded.preprocess == SMALL
    assert loaded.config["record"] == {"seed": 0}
    torch.testing.assert_close(loaded.model.encode_image(batch["image"].rows), model.encode_image(batch["image"].rows))
    torch.testing.assert_close(loaded.model.encode_text(batch["text"].rows), model.encode_text(batch["text"].rows))


def test_a_tokenizer_of_another_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"merges\.txt gives 515 tokens, the model has 64"):
        load_model(save(tmp_path))


def test_half_stores_matrices_in_float16_and_the_rest_in_float32(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    state = load_file(save(tmp_path, small_model("meru"), half=True) / "model.safetensors")
    assert state["visual_proj.weight"].dtype == torch.float16
    assert state["curv"].dtype == state["pixel_mean"].dtype == state["textual.ln_final.weight"].dtype == torch.float32


def test_half_refuses_a_weight_that_float16_cannot_hold(tmp_path: Path) -> None:
    model = small_model("clip")
    with torch.no_grad():
        model.visual_proj.weight[0, 0] = 70_000
    with pytest.raises(NotFiniteError, match=r"visual_proj\.weight have values up to 7e\+04, beyond half precision"):
        save(tmp_path, model, half=True)


@pytest.mark.parametrize("layout", ["model", "bare", "module"])
def test_a_released_file_is_read_in_every_layout(tmp_path: Path, layout: str) -> None:
    model = small_model("phyclip", seed=1)
    state = to_released(model)
    assert {"curvs.1", "visual_concept_alphas.0", "curv", "textual.attn_mask"} <= state.keys()
    contents = {"model": state, "bare": state, "module": {"model": {f"module.{k}": v for k, v in state.items()}}}
    contents["model"] = {"model": state, "optimizer": {"state": {}}, "iteration": 7}
    torch.save(contents[layout], tmp_path / "checkpoint.pth")
    other = small_model("phyclip", seed=2)
    load_state(other, read_weights(tmp_path / "checkpoint.pth"), tmp_path)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value)


def test_a_released_file_of_uncha_is_read_and_written_with_the_entries_that_its_loss_does_not_use(
    tmp_path: Path,
) -> None:
    model = small_model("uncha", seed=1)
    state = to_released(model)
    assert {"logit_scale", "textual.min_radius_head.0.weight", "textual.min_radius_head.0.bias"} <= state.keys()
    write_released(tmp_path / "uncha.pth", model)
    other = small_model("uncha", seed=2)
    load_state(other, read_weights(tmp_path / "uncha.pth"), tmp_path)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in other.state_dict().items())
    with pytest.raises(ValueError, match="does not fit a meru model"):
        load_state(small_model("meru"), read_weights(tmp_path / "uncha.pth"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", most_in_rest("phyclip", ("meru", "phyclip", "uncha")))
def test_sizes_of_a_released_model_are_inferred_from_its_shapes(tmp_path: Path, name: str) -> None:
    from trainer.models.registry import MODELS, build_model

    model = build_model(name, MODELS[name].config())
    write_released(tmp_path / "model.pth", model)
    loaded = load_model(tmp_path / "model.pth", name)
    assert loaded.model.config == model.config
    assert loaded.tokenizer.vocab_size == 49_408
    with pytest.raises(ValueError, match="give model_name, one of"):
        load_model(tmp_path / "model.pth")


def test_weights_of_another_model_are_an_error_that_names_an_entry(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not fit a meru model: 3 entries missing, such as curv"):
        load_state(small_model("meru"), small_model("clip").state_dict(), tmp_path)


def test_a_missing_factor_is_an_error() -> None:
    state = to_released(small_model("phyclip"))
    state["curvs.5"] = state.pop("curvs.1")
    with pytest.raises(ValueError, match=r"curvs: the entries are numbered \[0, 5\] instead of 0, 1"):
        from_released(state)


@pytest.mark.usefixtures("tokens_fit")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ["clip"]}, "'model' is missing or has the wrong type"),
        ({"config": []}, "'config' is missing or has the wrong type"),
        ({"preprocess": {"size_px": 16}}, "'mode' is missing in 'preprocess'"),
        ({"image": {"name": "hf-hub:someone/model"}}, "a model of timm"),
        ({"image": {"name": "resnet18", "kwargs": {"checkpoint_path": "x.pth"}}}, "checkpoint_path is not allowed"),
        ({"embed_dims": 3}, "embed_dims"),
        ({"embed_dim": 0}, r"model_here: config of clip: embed_dim is 0"),
        ({"embed_dim": True}, r"model_here: config of clip: embed_dim is true; give a whole number"),
        (
            {"embed_dim": "${oc.env:HOME}"},
            r"model_here: config of clip: embed_dim is \$\{oc.env:HOME\}; give a whole number",
        ),
    ],
)
def test_a_malicious_misspelt_or_missing_entry_of_a_config_is_an_error(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = save(tmp_path / "model_here") / "config.json"
    config = json.loads(path.read_text())
    if config.keys() & change.keys():
        config |= change
        message = rf"config\.json: {message}"
    else:
        config["config"] |= change
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        load_model(path.parent)


def test_a_path_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing; give the folder of a run"):
        load_model(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"missing\.pth does not exist; give the folder"):
        load_model(tmp_path / "missing.pth")


@pytest.mark.usefixtures("tokens_fit")
def test_the_folder_of_a_run_stands_for_its_model(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for path in (tmp_path, tmp_path / "model"):
        with pytest.raises(FileNotFoundError, match=f"^{tmp_path} is a training run that has not finished"):
            load_model(path)
    model = small_model("clip")
    save(tmp_path / "model", model)
    loaded = load_model(tmp_path)
    assert loaded.model.state_dict().keys() == read_weights(tmp_path).keys()
    assert torch.equal(loaded.model.logit_scale, model.logit_scale)


@pytest.mark.usefixtures("tokens_fit")
@pytest.mark.parametrize(
    ("group", "key", "value", "message"),
    [
        ("", "embed_dim", 10**6, r"model\.safetensors .*: textual_proj\.weight is \[16, \d+\], not \[1000000, \d+\]"),
        ("text", "width", 10**5, r"model\.safetensors .* is \[.*\], not \[.*100000.*\]"),
        ("text", "layers", 10**9, r"describes a larger model than its \d+ tensors of weights"),
        ("text", "context_length", 10**6, r"too large|not \[1000000, \d+\]"),
        ("", "embed_dim", 1 << 62, r"no model can be built|not \[\d{19}"),
    ],
)
def test_a_configuration_that_is_not_that_of_the_weights_is_refused_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, key: str, value: int, message: str
) -> None:
    folder = save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (config["config"][group] if group else config["config"])[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(model_files, "build_model", None)  # which would take memory
    with pytest.raises(ValueError, match=message):
        load_model(folder)
