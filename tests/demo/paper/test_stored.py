"""The stored results of the study: all are found as finished, and README.md has the figures of their page."""

import json
import tarfile
from pathlib import Path

import pytest

from demo.paper.__main__ import main
from demo.paper.plan import SIZES, VARIANTS
from demo.paper.results import estimate, read_rows, shown
from demo.paper.run import Study, run_study
from demo.paper.tables import HEADINGS

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "demo" / "paper" / "full.tar.xz"
COLUMNS = {
    ("", "classification:scenes/accuracy"): "accuracy on scenes, A",
    ("@scenes", "classification:scenes/accuracy"): "B",
    ("", "retrieval:coco/text_to_image/recall@5"): "text → image R@5, A",
    ("@scenes", "retrieval:coco/text_to_image/recall@5"): "B",
    ("", "order:cross_image/order"): "box nearer the root than image, A",
    ("@scenes", "order:cross_image/order"): "B",
}
"""Tower (`CONDITIONS`) and metric of a column of README.md -> its heading."""
SHOWN = ("clip", "clip-boxes", "meru", "hycoclip", "hycoclip-no-entailment", "phyclip")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stored results."""
    folder = tmp_path_factory.mktemp("stored") / "out"
    with tarfile.open(STORED) as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_all_rows_are_finished_so_that_no_data_is_made(out: Path, tmp_path: Path) -> None:
    assert STORED.stat().st_size < 10_000_000
    study = Study(size=SIZES["full"], out=out, data=tmp_path / "data")
    assert [row.key for row in VARIANTS.values() if not all(run.is_done for run in study.runs(row))] == []
    run_study(study, 1)
    assert not study.data.exists()


def test_the_table_of_the_readme_has_the_stored_results_with_items_of_ten_seeds(out: Path) -> None:
    towers = {tower for tower, _ in COLUMNS}
    rows = read_rows(out / "results", {VARIANTS[key + tower]: 10 for key in SHOWN for tower in towers})

    def cell(key: str, tower: str, metric: str) -> str:
        found = estimate(metric, rows[key + tower])
        assert found is not None
        assert (found.n_seeds, found.has_items) == (10, True)
        return f"{shown(metric, found.value)} ± {shown(metric, found.half())}"

    lines = [" | ".join(["| model", *COLUMNS.values()]) + " |", "|---|" + "---:|" * len(COLUMNS)]
    lines += [
        " | ".join([f"| {VARIANTS[key].title}", *(cell(key, *column) for column in COLUMNS)]) + " |" for key in SHOWN
    ]
    assert "\n".join(lines) in (ROOT / "README.md").read_text(encoding="utf-8"), "\n".join(lines)


@pytest.mark.rest
def test_their_page_has_all_rows_and_pictures(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["paper", "--size", "full", "--out", str(out), "--work", str(tmp_path / "work")])
    assert main() == 0
    assert not (tmp_path / "work").exists()
    text = (out / "paper.md").read_text("utf-8")
    assert "Not finished" not in text
    assert "not measured (0)" in text
    assert "claims.csv is not the file" not in text
    page = (out / "index.html").read_text("utf-8")
    assert 'src="data:image/png' in page  # figures of first seeds
    assert "<h3>traversal</h3>" in page
    metrics = json.loads((out / "paper.json").read_text("utf-8"))["metrics"]
    main_rows = [key for key, row in VARIANTS.items() if row.table == "main" and key == row.row]
    for found in (metrics[key][name] for key in main_rows for name in HEADINGS):
        assert (found["n_seeds"], found["has_items"]) == (10, True)
