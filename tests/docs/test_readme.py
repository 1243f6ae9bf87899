"""README.md: its length, its picture, and its Python example, run on the model of the demo."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READ = ("demo/weights/hycoclip", "docs/examples/wrench.jpg", "docs/examples/mug.jpg")
"""What the example of README.md reads."""


def python_example(document: str) -> str:
    """The Python code of a document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def prepare(folder: Path) -> None:
    """Link to what the example of README.md reads, from another folder."""
    for name in READ:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(ROOT / name)


def test_the_readme_opens_with_a_picture_then_has_the_disk_and_at_most_130_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == "# HyperGRIT"
    assert lines[2].startswith("![")
    assert re.findall(r"\]\(docs/(\w+)\.png\)", text)[:2] == ["overview", "disk"]
    assert (ROOT / "docs" / "overview.png").stat().st_size > 100_000
    assert len(lines) <= 130


def test_the_python_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "readme.py"
    script.write_text(python_example("README.md"), encoding="utf-8")
    variables = runpy.run_path(str(script))
    assert variables["images"].shape == variables["texts"].shape == (2, variables["model"].embed_dim)
    similarity, entailment, margins = capsys.readouterr().out.split("tensor(")[1:]
    assert similarity.count(",") >= 3
    assert re.findall("True|False", entailment) == ["True", "False", "False", "True"]
    assert [number > 0 for number in map(float, re.findall(r"-?\d+\.\d+", margins))] == [True, False, False, True]
