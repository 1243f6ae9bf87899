"""Export to open_clip's layout and back: equal features, and equal weights bit for bit."""

from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
import torch.nn.functional as F

from hypergrit_common.errors import UserError
from tests.trainer.small import most_in_rest
from tests.trainer.tiny_open_clip import register
from trainer.checkpoints.model import load_model, save_model
from trainer.config import load_config
from trainer.data.preprocess import PreprocessConfig
from trainer.inference.export import convert, main
from trainer.models.dual_encoder import DualEncoder
from trainer.text.tokenizer import Tokenizer, openai_tokenizer
from trainer.training.build import new_model

SMALL_VIT = "model.image.kwargs={embed_dim: 16, depth: 2, num_heads: 2, patch_size: 8}"
SMALL_TEXT = [f"model.text.{size}" for size in ("width=16", "layers=2", "heads=2", "context_length=12")]
PAPER = [SMALL_VIT, "model.image.size_px=16", *SMALL_TEXT]
CAPTIONS = ["a dog", "two cats and a red bird", "a red house"]


@pytest.fixture(scope="module", autouse=True)
def open_clip_lists_the_tiny_architectures(tmp_path_factory: pytest.TempPathFactory) -> None:
    register(tmp_path_factory.mktemp("architectures"))


def towers(image: str, text: str | None = None) -> list[str]:
    return [
        f"model.image.name=open_clip/{image}",
        *(SMALL_TEXT if text is None else [f"model.text.name=open_clip/{text}"]),
    ]


def build(*settings: str, model: str = "meru") -> DualEncoder:
    """A model with random weights, none of them zero."""
    torch.manual_seed(1)
    built = new_model(
        load_config([f"model_name={model}", "output=o", "shards=s", "model.embed_dim=8", *settings])
    ).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return built


def save(model: DualEncoder, folder: Path) -> Path:
    config = model.config
    preprocess = PreprocessConfig(size_px=config.image.size_px, mode="squash")
    tokenizer = openai_tokenizer(config.text.context_length)
    save_model(folder, model, tokenizer=tokenizer, preprocess=preprocess, record={"output": "/home/ann/out"})
    return folder


def assert_same_features(model: DualEncoder, exported: Any) -> None:
    side = model.config.image.size_px
    images = torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    pixels = (images - model.pixel_mean) / model.pixel_std
    ids = openai_tokenizer(12)(CAPTIONS)
    with torch.no_grad():
        torch.testing.assert_close(exported.encode_image(pixels), model.image_features(images))
        padded = F.pad(ids, (0, 12 - ids.shape[1]))
        torch.testing.assert_close(exported.encode_text(padded), model.text_features(ids))
        torch.testing.assert_close(exported.logit_scale, model.pair_scale().log())


def assert_same_weights(first: DualEncoder, second: DualEncoder) -> None:
    assert first.config == second.config
    assert first.state_dict().keys() == second.state_dict().keys()
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


@pytest.mark.parametrize("settings", [
    PAPER,
    towers("tiny-timm", "tiny-timm"),
    pytest.param(towers("tiny-vit", "tiny-vit"), marks=pytest.mark.rest),
    pytest.param(towers("tiny-timm"), marks=pytest.mark.rest),
    pytest.param([*PAPER[:2], "model.text.name=open_clip/tiny-timm"], marks=pytest.mark.rest),
], ids=["paper", "timm", "open_clip ViT", "timm and paper", "paper and open_clip"])  # fmt: skip
def test_open_clip_loads_the_towers_and_they_come_back_bit_for_bit(tmp_path: Path, settings: list[str]) -> None:
    model = build(*settings)
    convert(save(model, tmp_path / "model"), tmp_path / "out")
    exported = open_clip.create_model(f"local-dir:{tmp_path / 'out'}").eval()
    assert_same_features(model, exported)
    assert exported.visual.preprocess_cfg["resize_mode"] == "squash"
    assert exported.visual.preprocess_cfg["mean"] == pytest.approx(model.config.pixel_mean)
    convert(tmp_path / "out", tmp_path / "back")
    back = load_model(tmp_path / "back")
    assert_same_weights(back.model, model)
    assert back.preprocess == load_model(tmp_path / "model").preprocess
    assert back.config["record"] == {"output": "out"}


@pytest.mark.parametrize("name", most_in_rest("phyclip uncha"))
def test_every_model_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    model = build(*PAPER, model=name)
    convert(save(model, tmp_path / "model"), tmp_path / "out")
    convert(tmp_path / "out", tmp_path / "back")
    assert_same_weights(load_model(tmp_path / "back").model, model)


def test_an_exported_tower_of_open_clip_is_initial_weights_of_a_run(tmp_path: Path) -> None:
    model = build(*towers("tiny-vit", "tiny-vit"))
    convert(save(model, tmp_path / "model"), tmp_path / "out")
    weights = [f"model.{part}.weights={tmp_path / 'out'}" for part in ("image", "text")]
    settings = [
        "model_name=clip",
        "output=o",
        "shards=s",
        "model.embed_dim=4",
        *towers("tiny-vit", "tiny-vit"),
        *weights,
    ]
    loaded = new_model(load_config(settings))
    for part in ("visual", "textual"):
        for key, value in getattr(model, part).state_dict().items():
            assert torch.equal(value, getattr(loaded, part).state_dict()[key])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.image.name=resnet10t", *SMALL_TEXT], "open_clip cannot represent the image tower resnet10t"),
        (towers("tiny-resnet", "tiny-resnet"), "cannot represent the projection after open_clip/tiny-resnet"),
        (towers("tiny-vit"), "one activation function for both towers, but those of open_clip/tiny-vit and the text"),
    ],
)
def test_a_tower_that_open_clip_cannot_represent_is_an_error(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(save(build(*settings), tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_tokenizer_is_an_error(tmp_path: Path) -> None:
    model = build(*PAPER, "model.text.vocab_size=515")
    preprocess = PreprocessConfig(size_px=16)
    save_model(tmp_path / "model", model, tokenizer=Tokenizer([("a", "b")], 12), preprocess=preprocess, record={})
    with pytest.raises(UserError, match="open_clip has no tokenizer with the merges of this model"):
        convert(tmp_path / "model", tmp_path / "out")


def test_faults_of_the_command_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(build(*PAPER), tmp_path / "model")
    assert main([str(folder), str(folder)]) == 2
    assert "model is not empty; give a new folder" in capsys.readouterr().err
    assert main([str(folder)]) == 2
    assert main([str(folder), "output=out", "format=onnx"]) == 2  # as for a data set
    assert main(["--help"]) == 0
    assert main([str(folder), str(tmp_path / "out")]) == 0
    (tmp_path / "out" / "hypergrit.safetensors").write_bytes(b"")
    assert main([str(tmp_path / "out"), str(tmp_path / "back")]) == 2
    assert "hypergrit.safetensors is not a safetensors file" in capsys.readouterr().err
    assert not (tmp_path / "back").exists()
