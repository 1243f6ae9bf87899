"""The stored results of the study: all files can be read, and README.md has their figures."""

import tarfile
from pathlib import Path

import pytest

from demo.paper.__main__ import main
from demo.paper.results import Rows, estimate, read_rows
from demo.paper.sizes import SIZES, rows_of
from demo.paper.tables import MAIN, shown

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
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(STORED) as tar:
        tar.extractall(folder, filter="data")
    return read_rows(folder / "results", [(row, SIZES["full"].seeds_of(row)) for row in rows_of(SIZES["full"])])


def test_the_stored_results_are_small_and_those_of_the_main_rows_have_items(rows: Rows) -> None:
    assert STORED.stat().st_size < 10_000_000
    main = [row for key, row in rows.items() if row.variant.table == "main" and key == row.variant.row]
    assert set(SHOWN) <= {row.variant.key for row in main}
    assert all(len(row.results) == 10 and all(row.has_items(metric) for metric in MAIN) for row in main)


def test_the_table_of_the_readme_has_the_stored_results(rows: Rows) -> None:
    def cell(key: str, metric: str) -> str:
        found = estimate(rows[key], metric)
        assert found is not None
        return f"{shown(metric, found.value)} ± {shown(metric, found.half())}"

    lines = [" | ".join(["| model", *COLUMNS.values()]) + " |", "|---|" + "---:|" * len(COLUMNS)]
    lines += [
        " | ".join([f"| {rows[key].variant.title}", *(cell(key, name) for name in COLUMNS)]) + " |" for key in SHOWN
    ]
    assert "\n".join(lines) in (ROOT / "README.md").read_text(encoding="utf-8"), "\n".join(lines)


def test_their_page_is_written_without_training_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(STORED) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    folders = ("--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"))
    monkeypatch.setattr("sys.argv", ["paper", "--size", "full", "--rows", "clip", *folders])
    assert main() == 0
    assert not (tmp_path / "work").exists()
    text = (tmp_path / "out" / "paper.md").read_text(encoding="utf-8")
    assert "PHyCLIP, k64" in text
    assert "not measured (0)" in text
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert page.index("Experiments of ours") < page.index("Displaced boxes") < page.index("Where HyCoCLIP learns")
