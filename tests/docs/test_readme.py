"""README.md: its length, its picture, and its Python example, run on the model of a training run."""

import json
import re
import runpy
import shutil
from collections import Counter
from pathlib import Path

import PIL.Image
import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "compatibility" / "v0_1" / "whole"


def python_example(document: str) -> str:
    """The Python code of a document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def prepare(folder: Path) -> None:
    """Create the files that the example of README.md reads: the folder of a training run and two images."""
    shutil.copytree(RUN, folder / "out" / "hycoclip")
    for name, colour in (("cat.jpg", "orange"), ("dog.jpg", "brown")):
        PIL.Image.new("RGB", (64, 48), colour).save(folder / name)


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_readme_opens_with_a_picture() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# HyperGRIT"
    assert lines[2].startswith("![")
    assert (ROOT / "docs" / "overview.png").stat().st_size > 100_000


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


def cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_table_of_the_study_is_the_main_table_of_its_page() -> None:
    lines = (ROOT / "docs" / "paper" / "paper.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("## Main results") + 2
    heading, _, *rows = (cells(line) for line in lines[start : lines.index("", start)])
    expected = {name: values for name, _, *values in rows}
    readme = iter((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    shown = next(cells(line) for line in readme if line.startswith("| trained on scenes |"))
    assert shown[1:] == heading[2:]
    next(readme)
    found = {name: values for name, *values in map(cells, iter(lambda: next(readme), ""))}
    assert len(found) >= 6
    assert found == {name: expected[name] for name in found}


def test_the_numbers_of_claims_are_those_of_the_study() -> None:
    claims = json.loads((ROOT / "docs" / "paper" / "paper.json").read_text(encoding="utf-8"))["claims"]
    counts = Counter(claim["verdict"] for claim in claims)
    text = f"shows {counts['shown']} of {len(claims)} claims of the papers, contradicts {counts['contradicted']}"
    assert text in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
