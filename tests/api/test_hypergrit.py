"""The command `hypergrit`: its verbs, what they say of themselves, and mistakes."""

import subprocess
import sys
from pathlib import Path

import pytest

from hypergrit.__main__ import VERBS, main

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "ray", "spacy", "transformers")


def test_help_lists_every_verb_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] and len(line) < 110 for line in lines) for name in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_shows_commands_and_loads_no_model(verb: str) -> None:
    code = (
        f"import sys; from hypergrit.__main__ import main; code = main([{verb!r}, '--help']); "
        f"sys.exit(code or [name for name in {HEAVY!r} if name in sys.modules] or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"usage: hypergrit {verb}" in done.stdout
    assert done.stdout.count(f"  hypergrit {verb}") >= 1


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


def test_a_verb_gives_its_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hypergrit", "run", "input=nothing.parquet", "output=out"], cwd=ROOT, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "nothing.parquet" in done.stderr
