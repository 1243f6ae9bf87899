"""The command that draws the pictures of README.md and docs/."""

import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest

from docs.figures.__main__ import FIGURES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *DOCS.glob("*.md")]


def figures(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "docs.figures", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_each_picture_of_the_docs_is_drawn_by_the_command() -> None:
    assert {path.stem for path in DOCS.glob("*.png")} <= FIGURES.keys()


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.png")), ids=lambda path: path.name)
def test_each_picture_is_on_a_page(path: Path) -> None:
    assert any(f"{path.name})" in page.read_text(encoding="utf-8") for page in PAGES)


def test_a_picture_can_be_drawn_by_its_name(tmp_path: Path) -> None:
    done = figures("architecture", "--to", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    drawn, kept = PIL.Image.open(tmp_path / "architecture.png"), PIL.Image.open(DOCS / "architecture.png")
    assert drawn.size == kept.size
    assert [path.name for path in tmp_path.iterdir()] == ["architecture.png"]


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    done = figures("architectur", "--to", str(tmp_path / "new"))
    assert done.returncode == 2
    assert "no picture is named 'architectur'; there are overview, architecture, performance" in done.stderr
    assert not (tmp_path / "new").exists()
