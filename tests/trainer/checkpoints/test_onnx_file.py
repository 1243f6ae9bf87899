"""Models as ONNX files: the same points in onnxruntime. Skipped without the packages of the extra `onnx`."""

import json
from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.small import most_in_rest, small_model
from trainer.checkpoints.model import LoadedModel, load_model
from trainer.checkpoints.onnx_file import Rows, write_onnx
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import TextConfig
from trainer.inference.export import main
from trainer.text.tokenizer import Tokenizer

HEAD = Path(__file__).parents[3] / "demo" / "weights" / "hycoclip"


def loaded(name: str) -> LoadedModel:
    """A small model with random weights and projections so large that the lift matters."""
    model = small_model(name, text=TextConfig(vocab_size=514, context_length=8, width=32, layers=1, heads=2))
    with torch.no_grad():
        for layer in (model.visual_proj, model.textual_proj):
            layer.weight.mul_(4)
    return LoadedModel(model=model, tokenizer=Tokenizer([], 8), preprocess=PreprocessConfig(size_px=16), config={})


@pytest.mark.parametrize("name", most_in_rest("phyclip"))
def test_onnxruntime_computes_the_points_of_the_model(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = loaded(name)
    write_onnx(found, tmp_path / "out")
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "image": torch.rand(5, 3, 16, 16, generator=generator),
        "text": found.tokenizer(["a cat", "a dog on", "b"]),
    }
    inputs["text"] = torch.nn.functional.pad(inputs["text"], (0, 8 - inputs["text"].shape[1]))
    for side, values in inputs.items():
        session = runtime.InferenceSession(str(tmp_path / "out" / f"{side}.onnx"), providers=["CPUExecutionProvider"])
        points = torch.from_numpy(session.run(None, {side: values.numpy()})[0])
        with torch.no_grad():
            expected = Rows(found.model, side)(values)
        torch.testing.assert_close(points, expected, atol=1e-5, rtol=1e-5)
    facts = json.loads((tmp_path / "out" / "model.json").read_text())
    assert (facts["model"], facts["points"]["width"], facts["text"]["context_length"]) == (name, 16, 8)


@pytest.mark.rest
def test_a_head_is_exported_with_its_tower(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = load_model(HEAD)
    write_onnx(found, tmp_path / "out")
    ids = found.tokenizer(["a cat", "a dog on a sofa"])
    ids = torch.nn.functional.pad(ids, (0, found.model.config.text.context_length - ids.shape[1]))
    session = runtime.InferenceSession(str(tmp_path / "out" / "text.onnx"), providers=["CPUExecutionProvider"])
    points = torch.from_numpy(session.run(None, {"text": ids.numpy()})[0])
    with torch.no_grad():
        torch.testing.assert_close(points, found.model.encode_text(ids), atol=1e-4, rtol=1e-4)


def test_without_the_packages_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(UserError, match=r"need the extra onnx .*pip install '\.\[onnx\]'"):
        write_onnx(loaded("meru"), tmp_path / "out")


def test_other_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "out", "format=tflite"]) == 2
    assert "give two, the folder of a model and the new folder, and perhaps format=onnx" in capsys.readouterr().err
