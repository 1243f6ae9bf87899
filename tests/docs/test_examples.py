"""The README's examples read a real output, and stand in the README as they were run."""

import runpy
import sys
from pathlib import Path

import pytest

from pipeline.write.config import WriteConfig
from pipeline.write.stage import write_shard
from tests.pipeline.write.shards import CAPTION, PROVENANCE, dropped_row, kept_row, plan, table
from trainer.data.loader import preserve_sigchld_handler

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("read_*.py"))
KEYS = [f"{i:012d}" for i in (10, 12, 13, 20)]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards in every format: four rows kept, one dropped."""
    folder = tmp_path_factory.mktemp("output")
    write_shard(table(), plan(index=0), WriteConfig(), str(folder), PROVENANCE)
    write_shard(table([kept_row(20)]), plan(index=1, n_rows=1), WriteConfig(), str(folder), PROVENANCE)
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def run(name: str, output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """What docs/examples/NAME prints about `output`; in this process, where the heavy libraries are loaded once."""
    script = str(ROOT / "docs" / "examples" / name)
    monkeypatch.setattr(sys, "argv", [script, str(output)])
    with preserve_sigchld_handler():  # or a plain DataLoader's would outlive its test
        runpy.run_path(script, run_name="__main__")
    return capfd.readouterr().out


def test_webdataset_reads_every_sample_with_its_crops_and_scores(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run("read_webdataset.py", output, monkeypatch, capfd)
    assert [line.split()[0] for line in printed.splitlines() if not line.startswith(" ")] == KEYS
    assert printed.count(f"(224, 224) {CAPTION}") == 4
    assert printed.count("(224, 224) 'a small dog' score 0.90") == 4


def test_a_torch_dataloader_gives_batches_of_images_and_boxes(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run("read_torch.py", output, monkeypatch, capfd)
    assert "(4, 3, 224, 224) (4, 3, 224, 224)" in printed
    assert printed.count(CAPTION) == 4


def test_hugging_face_datasets_reads_images_captions_and_grits_boxes(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run("read_huggingface.py", output, monkeypatch, capfd)
    assert [line.split()[0] for line in printed.splitlines() if not line.startswith(" ")] == KEYS
    assert printed.count(f"(300, 200) {CAPTION}") == 4
    assert printed.count("'a small dog' at [0.1, 0.25, 0.9, 0.75] score 0.90") == 4


def test_pyarrow_reads_every_row_with_its_fate(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run("read_pyarrow.py", output, monkeypatch, capfd)
    dropped = dropped_row(11)
    assert f"{dropped['key']} dropped by download http_error 404" in printed
    assert printed.count(f"kept: {CAPTION}") == 4
    assert printed.count("'a small dog' 0.90 kept") == 4
    assert printed.count("'a café' 0.80 low_clip_score") == 4


def test_duckdb_counts_rows_by_reason(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run("read_duckdb.py", output, monkeypatch, capfd)
    assert "http_error" in printed
    assert "download: http_error: 404" in printed
    kept = next(line for line in printed.splitlines() if "kept" in line)
    assert [cell.strip() for cell in kept.strip("│ ").split("│")][:2] == ["kept", "4"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_readme_shows_the_example_as_it_was_run(example: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```python\n{example.read_text(encoding='utf-8')}```\n" in readme, f"README.md differs from {example.name}"
