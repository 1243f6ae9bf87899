"""The stored results of the study: all are found as finished, and README.md has the figures of their page."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from demo.paper.__main__ import main
from demo.paper.plan import VARIANTS
from demo.paper.results import shown
from demo.paper.tables import HEADINGS

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "demo" / "paper" / "full.tar.xz"
COLUMNS = {
    "classification:scenes/accuracy": "zero-shot accuracy",
    "retrieval:coco/text_to_image/recall@5": "text → image R@5",
    "vlchecklist:object": "VL-CheckList object",
    "order:cross_image/order": "box nearer the root than image",
}
SHOWN = ("clip", "clip-boxes", "meru", "hycoclip", "hycoclip-no-entailment", "phyclip")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page of the stored results, which the command has written without other work."""
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(STORED) as tar:
        tar.extractall(folder / "out", filter="data")
    with pytest.MonkeyPatch.context() as patch:
        words = ["paper", "--size", "full", "--out", str(folder / "out"), "--work", str(folder / "work")]
        patch.setattr("sys.argv", words)
        assert main() == 0
    return folder


@pytest.fixture(scope="module")
def metrics(study: Path) -> dict[str, dict[str, Any]]:
    """The estimates of the page by row and metric."""
    found: dict[str, dict[str, Any]] = json.loads((study / "out" / "paper.json").read_text("utf-8"))["metrics"]
    return found


def test_all_rows_are_finished_and_the_page_needs_no_data(study: Path) -> None:
    assert STORED.stat().st_size < 10_000_000
    assert not (study / "work").exists()
    text = (study / "out" / "paper.md").read_text("utf-8")
    assert "Not finished" not in text
    assert "not measured (0)" in text
    assert "claims.csv is not the file" not in text
    page = (study / "out" / "index.html").read_text("utf-8")
    assert 'src="data:image/png' in page  # figures of first seeds
    assert "<h3>traversal</h3>" in page


def test_main_rows_have_ten_seeds_and_items(metrics: dict[str, dict[str, Any]]) -> None:
    main = [key for key, row in VARIANTS.items() if row.table == "main" and key == row.row]
    assert set(SHOWN) <= set(main)
    for found in (metrics[key][name] for key in main for name in HEADINGS):
        assert (found["n_seeds"], found["has_items"]) == (10, True)


def test_the_table_of_the_readme_has_the_stored_results(metrics: dict[str, dict[str, Any]]) -> None:
    def cell(metric: str, found: dict[str, float]) -> str:
        return f"{shown(metric, found['value'])} ± {shown(metric, found['high'] - found['value'])}"

    lines = [" | ".join(["| model", *COLUMNS.values()]) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for key in SHOWN:
        cells = [cell(name, metrics[key][name]) for name in COLUMNS]
        lines.append(" | ".join([f"| {VARIANTS[key].title}", *cells]) + " |")
    assert "\n".join(lines) in (ROOT / "README.md").read_text(encoding="utf-8"), "\n".join(lines)
