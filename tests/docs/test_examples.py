"""Tests that the examples run on the output of a job, and that docs/shards.md contains them verbatim."""

import runpy
import sys
from pathlib import Path

import pytest

from pipeline.config import WriteConfig
from pipeline.output.write.stage import write_shard
from tests.engines.outputs import BOXES, write_pairs, write_uneven
from tests.pipeline.output.write.shards import CAPTION, PROVENANCE, dropped_row, kept_row, plan, table
from trainer.data.workers import preserve_sigchld_handler

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("read_*.py"))
KEYS = [f"{i:012d}" for i in (10, 12, 13, 20)]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job: two shards in every format, with four kept rows and one dropped row."""
    folder = tmp_path_factory.mktemp("output")
    write_shard(table(), plan(index=0), WriteConfig(), str(folder), PROVENANCE)
    write_shard(table([kept_row(20)]), plan(index=1, n_rows=1), WriteConfig(), str(folder), PROVENANCE)
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def run(name: str, output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Return what an example prints for `output`. It runs in this process, so that heavy libraries are loaded once."""
    script = str(ROOT / "docs" / "examples" / name)
    monkeypatch.setattr(sys, "argv", [script, str(output)])
    with preserve_sigchld_handler():  # otherwise the signal handler of a DataLoader would outlive the test
        runpy.run_path(script, run_name="__main__")
    return capfd.readouterr().out


LINES = {
    "read_webdataset.py": {
        f"(224, 224) {CAPTION}": 4,
        "(224, 224) 'a small dog' score 0.90": 4,
    },
    "read_open_shards.py": {f"{CAPTION} torch.Size([3, 224, 224])": 4, "('a small dog', torch.Size([3, 224, 224]))": 4},
    "read_torch.py": {"(4, 3, 224, 224) (4, 3, 224, 224)": 1, CAPTION: 4},
    "read_huggingface.py": {
        f"(300, 200) {CAPTION}": 4,
        "'a small dog' at [0.1, 0.25, 0.9, 0.75] score 0.90": 4,
    },
    "read_pyarrow.py": {
        f"{dropped_row(11)['key']} dropped by download http_error 404": 1,
        f"kept: {CAPTION}": 4,
        "'a small dog' 0.90 kept": 4,
        "'a café' 0.80 low_clip_score": 4,
    },
}
"""Example -> parts of what it prints, and how often."""


@pytest.mark.parametrize("name", LINES)
def test_an_example_reads_every_sample_with_its_boxes(
    name: str, output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run(name, output, monkeypatch, capfd)
    assert {part: printed.count(part) for part in LINES[name]} == LINES[name]
    if name in ("read_webdataset.py", "read_huggingface.py"):
        assert [line.split()[0] for line in printed.splitlines() if not line.startswith(" ")] == KEYS


def test_index_example_reads_the_captions(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run("read_index.py", output, monkeypatch, capfd)
    assert printed.splitlines() == [f"{key} {CAPTION} 12 members" for key in KEYS]


def test_hugging_face_reads_train_with_five_lines_and_pairs_with_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run("read_huggingface_train.py", write_uneven(tmp_path / "out"), monkeypatch, capfd)
    expected = [f"{key} (224, 224) {CAPTION} {boxes}" for key, boxes in zip(KEYS, BOXES, strict=True)]
    assert printed.splitlines() == expected
    pairs = run("read_huggingface.py", write_pairs(tmp_path / "pairs"), monkeypatch, capfd)
    assert pairs.splitlines() == [f"{key} (300, 200) {CAPTION}" for key in KEYS[:2]]


def test_duckdb_example_counts_rows_by_reason(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run("read_duckdb.py", output, monkeypatch, capfd)
    assert "http_error" in printed
    assert "download: http_error: 404" in printed
    kept = next(line for line in printed.splitlines() if "kept" in line)
    assert [cell.strip() for cell in kept.strip("│ ").split("│")][:2] == ["kept", "4"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_documentation_contains_the_example_verbatim(example: Path) -> None:
    page = (ROOT / "docs" / "shards.md").read_text(encoding="utf-8")
    code = example.read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in page, f"docs/shards.md differs from {example.name}"
