"""The command `hypergrit`: its verbs, what they say of themselves, and mistakes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hypergrit.__main__ import VERBS, main

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "ray", "spacy", "transformers", "timm")


def test_help_lists_every_verb_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] and len(line) < 110 for line in lines) for name in VERBS)


LIGHT = f"""
import contextlib, io, json, runpy, sys

import pipeline, trainer, trainer.data.config, trainer.models.config, trainer.models.registry

shown = {{}}
for verb in {list(VERBS)!r}:
    shown[verb] = ["hypergrit", verb, "--help"]
shown["model"] = ["trainer.train", "--help", "model_name=phyclip"]
shown["evaluate alone"], shown["export alone"] = ["trainer.evaluate", "--help"], ["trainer.inference.export", "--help"]
shown["paper"] = ["demo.paper", "--help"]
for name, sys.argv in shown.items():
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    shown[name] = text.getvalue()
print(json.dumps([shown, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


def test_help_and_settings_load_no_model_and_show_commands() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, capture_output=True, text=True, check=True)
    shown, heavy = json.loads(done.stdout)
    assert heavy == []
    for verb in VERBS:
        assert f"usage: hypergrit {verb}" in shown[verb]
        command = r"^  (hypergrit|python -m trainer.torchrun|srun|ray|model =) "
        assert len(re.findall(command, shown[verb], re.MULTILINE)) >= 4
    assert "lr (= optim.lr) = " in shown["train"]
    assert "model.factor_dim = 8" in shown["model"]
    assert "zero_shot/FOLDER/accuracy_micro" in shown["evaluate alone"]
    assert "local-dir:out/open_clip" in shown["export alone"]
    assert "rows, for --rows" in shown["paper"]


@pytest.mark.parametrize("verb", VERBS)
def test_help_before_a_verb_is_the_help_of_the_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", verb]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: hypergrit {verb}")
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("verb", "topic", "start"),
    [
        ("run", "score.min_score", "keys:\n\n  score.min_score = null"),
        ("run", "formats", "keys:\n\n  formats (= write.formats)"),
        ("rewrite", "score", "keys:\n\n  score.min_side_px = 32"),
        ("rewrite", "dedupe", "keys:\n  dedupe = []"),
        ("takedown", "list", "  list                 text file"),
        ("verify", "requeue", "keys:\n  requeue = false"),
        ("explore", "row", "keys:\n  row = null"),
        ("quality", "known", "keys:\n  known = null"),
        ("models", "grounder", "keys:\n\n  grounder (= ground.grounder)"),
        ("train", "optim.lr", "keys:\n\n  lr (= optim.lr)"),
        ("run", "host", "keys that mention 'host' ([runtime]"),
        ("evaluate", "tasks", "keys:\n  tasks = []"),
        ("export", "MODEL", "  MODEL  the folder of a finished run"),
        ("features", "views", "keys:\n  views = 1"),
    ],
)
def test_help_of_a_key(verb: str, topic: str, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help", topic]) == 0
    text = capsys.readouterr().out
    assert text.startswith(start)
    assert "usage" not in text
    assert main([verb, "--help", "nowhere_said"]) == 2
    assert "there is no key nowhere_said" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "word"), [(["verfiy"], "verify"), (["fly"], "takedown"), (["pipeline.grit"], "run")]
)
def test_a_word_that_is_no_verb_is_answered_with_the_verbs(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert word in capsys.readouterr().err


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "VERB" in capsys.readouterr().out


def test_a_verb_gives_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "input=nothing.parquet", f"output={tmp_path / 'out'}"]) == 2
    assert "nothing.parquet" in capsys.readouterr().err


def test_onnx_is_a_format_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "out/model", "output=out/onnx", "format=onnx"]) == 2
    assert "give two, the folder of a model and the new folder" in capsys.readouterr().err
    assert main(["export", "--help"]) == 0
    assert "format=onnx" in capsys.readouterr().out
