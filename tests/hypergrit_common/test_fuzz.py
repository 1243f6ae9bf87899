"""Random command lines, YAML files and model folders: one line, exit code 2, no traceback, and no code is run."""

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hypergrit_common.config_help import list_keys
from pipeline import grit
from pipeline.commands import models
from pipeline.config import PipelineConfig
from trainer import evaluate, train
from trainer.config import TrainConfig

MARK = "executed"
HOSTILE = (
    "", "null", "true", "-1", "0", "1e400", ".nan", "nan", "9" * 400, "9" * 5000, "[" * 3000, "{a: 1}", "[1, x]", "???",
    "${oc.env:HOME}", "${", "!!python/object/apply:os.mkdir [executed]", "!!binary x", "&a [*a]", "\x1b[2J", "a\x00b",
    "\u202e", "~", "2001-99-99", "'", '"', ": :", "/dev/zero", "/", "s3://u:p@", "http://[", "::", "file://", "a b", "%s",
)  # fmt: skip
Main = Callable[[Sequence[str]], int]


def convert(arguments: Sequence[str]) -> int:
    return models.main(["convert", *arguments])


def check(main: Main, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2, arguments
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if not line.startswith(("usage", " "))]
    assert len([line for line in lines if line.startswith("error: ")]) == 1, (arguments, error)
    assert "Traceback" not in error
    assert error.replace("\n", "").isprintable(), (arguments, error)
    assert not Path(MARK).exists()


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("main", "keys"),
    [
        (grit.main, [key.name for key in list_keys(PipelineConfig)]),
        (train.main, [key.name for key in list_keys(TrainConfig)]),
    ],
)
def test_hostile_command_lines_and_yaml_files(main: Main, keys: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(7)
    for number in range(150):
        key = draw.choice([*keys, "a.b", "input.x", "[0]", "..", "\x1b", "__class__"])
        value = draw.choice(HOSTILE)
        if number % 3:
            # `input` and `shards` name nothing, so that even a valid value ends in an error
            arguments = [f"{key}={value}", "input=/nowhere/pairs.csv", "output=out"][: draw.choice((1, 3))]
            if main is train.main:
                arguments = [f"{key}={value}", "data.shards=/nowhere", "output=out"][: len(arguments)]
        else:
            text = draw.choice((f"{key}: {value}", value, f"{key}:\n- {value}", f"? {value}\n: {key}"))
            Path("x.yaml").write_bytes(text.encode(errors="surrogatepass") + draw.randbytes(draw.choice((0, 0, 3))))
            arguments = ["x.yaml"]
        check(main, arguments, capsys)


@pytest.mark.parametrize("main", [evaluate.main, convert])
def test_hostile_first_arguments(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    for value in (*HOSTILE[1:], "/dev/null", "nowhere.yaml", "."):
        check(main, [value, "output=out"], capsys)


@pytest.mark.rest
def test_hostile_model_folders(capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(7)
    valid = {
        "format": 1, "model": "clip", "config": {"embed_dim": 4}, "tokenizer": "openai",
        "preprocess": {"size_px": 32, "mode": "crop"}, "model_type": "owlv2", "thresholds": {"score": 0.5},
        "text": {"vocab_size": 10}, "backbone": {"embed_dim": 8},
    }  # fmt: skip
    values = (True, None, 0, -1, 1e300, "x", [], {}, [[]], "\x1b[2J", "${oc.env:HOME}", {"embed_dim": True})
    folder = Path("model")
    folder.mkdir()
    for number in range(40):
        config = dict(valid)
        for key in draw.sample(sorted(valid), 2):
            config[key] = draw.choice(values)
        text = json.dumps(config) if number % 8 else draw.choice(("", "[]", "{", "[" * 10**5, "NaN", '"\ud800"'))
        (folder / "config.json").write_text(text, errors="surrogatepass")
        (folder / "model.safetensors").write_bytes(
            draw.choice((b"", b"\x00" * 100, b"\xff" * 8 + b"{}", os.urandom(64)))
        )
        check(evaluate.main, ["model", "shards=/nowhere"], capsys)
        if "model_type" not in text:
            check(convert, ["model/config.json", "output=out"], capsys)
