"""The command that draws the pictures of README.md and docs/."""

import json
import re
import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest

from docs.figures.__main__ import FIGURES
from docs.figures.paths import PHOTOGRAPHS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PICTURES = sorted([*DOCS.glob("*.png"), *DOCS.glob("*.jpg")])
PAGES = [ROOT / "README.md", *DOCS.glob("*.md")]


def figures(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "docs.figures", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_each_picture_of_the_docs_is_drawn_by_the_command() -> None:
    assert {path.name for path in PICTURES} <= {f"{name}.{figure.ending}" for name, figure in FIGURES.items()}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_each_picture_is_on_a_page(path: Path) -> None:
    assert any(f"{path.name})" in page.read_text(encoding="utf-8") for page in PAGES)


def test_a_picture_can_be_drawn_by_its_name(tmp_path: Path) -> None:
    done = figures("architecture", "--to", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    drawn, kept = PIL.Image.open(tmp_path / "architecture.png"), PIL.Image.open(DOCS / "architecture.png")
    assert drawn.size == kept.size
    assert [path.name for path in tmp_path.iterdir()] == ["architecture.png"]


def test_each_photograph_has_a_licence_and_boxes_of_its_phrases() -> None:
    licences = (PHOTOGRAPHS / "LICENSES.txt").read_text(encoding="utf-8")
    for path in PHOTOGRAPHS.glob("*.jpg"):
        assert re.search(rf"^{path.name} .*(CC0|public domain)$", licences, re.MULTILINE)
        given = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        for start, end, *corners, _ in given["noun_chunks"]:
            assert re.fullmatch(r"\w[\w ]+\w", given["caption"][start:end])
            assert 0 <= corners[0] < corners[2] <= 1
            assert 0 <= corners[1] < corners[3] <= 1
    assert sum(path.stat().st_size for path in [*PHOTOGRAPHS.iterdir(), DOCS / "photographs.jpg"]) < 400_000


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    done = figures("architectur", "--to", str(tmp_path / "new"))
    assert done.returncode == 2
    assert "no picture is named 'architectur'; there are overview, architecture, performance" in done.stderr
    assert not (tmp_path / "new").exists()
