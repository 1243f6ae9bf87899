"""README.md: its length, its picture, and its Python example, run on the model of a training run."""

import re
import runpy
import shutil
from pathlib import Path

import PIL.Image
import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "trainer" / "finished_run"


def python_example(document: str) -> str:
    """The Python code of a document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def prepare(folder: Path) -> None:
    """Create the files that the example of README.md reads: the folder of a training run and two images."""
    shutil.copytree(RUN, folder / "out" / "hycoclip")
    for name, colour in (("cat.jpg", "orange"), ("dog.jpg", "brown")):
        PIL.Image.new("RGB", (64, 48), colour).save(folder / name)


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
    similarity, entailment = capsys.readouterr().out.split("tensor(")[1:]
    assert similarity.count(",") >= 3
    assert "True" in entailment or "False" in entailment
