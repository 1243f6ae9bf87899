"""The plan for COYO-700M: its arithmetic, and that docs/scale.md shows its tables."""

import json
from pathlib import Path

import pytest

from benchmarks.scale_plan import FIGURES, core_seconds_per_row, main, plan, read_figures, sections, totals
from common.errors import UserError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"


@pytest.mark.parametrize("number", range(4))
def test_page_shows_the_tables_of_the_script(number: int) -> None:
    assert sections(read_figures([]))[number] in PAGE.read_text(encoding="utf-8")


def test_models_limit_a_cluster_with_enough_cores() -> None:
    figures = read_figures(["rows=3600000", "available=0.5", "with_phrase=1", "gpu_images_per_s=100", "gpu_busy=1"])
    result = plan(figures, 10)
    assert (result.limit, result.rows_per_s) == ("models", 2000)
    assert result.hours == pytest.approx(0.5)
    assert result.gpu_usd == pytest.approx(12.5)
    assert result.gbit_per_s == pytest.approx(2000 * 0.5 * FIGURES["image_kb"].value * 8e-6)


@pytest.mark.parametrize(
    ("change", "limit"),
    [("cores_per_gpu=1", "CPU workers"), ("permits_per_s=100", "permits"), ("driver_ms=1e7", "driver")],
)
def test_slowest_part_sets_the_rate(change: str, limit: str) -> None:
    figures = read_figures([change])
    assert plan(figures, 64).limit == limit
    assert plan(figures, 64).hours > plan(read_figures([]), 64).hours


def test_worker_waits_for_the_network_or_for_its_core() -> None:
    waits = read_figures(["download_rows_per_s=10", "available=1", "parse_per_s=100", "write_per_s=1e9"])
    assert core_seconds_per_row(waits) == pytest.approx(0.1 + 0.01)
    works = {**waits, "download_rows_per_s": 1e6, "tls_ms": 2.0, "resize_ms": 8.0}
    assert core_seconds_per_row(works) == pytest.approx(0.01 + 0.01)


def test_totals_do_not_depend_on_the_cluster() -> None:
    result = totals(read_figures(["rows=1e6", "rows_per_shard=1000", "available=0.5", "with_phrase=1", "kept=0.5"]))
    assert (result.shards, result.grounded, result.kept) == (1000, 5e5, 2.5e5)
    stored_kb = 2.5e5 * FIGURES["stored_kb"].value + 1e6 * FIGURES["row_kb"].value
    assert result.stored_tb == pytest.approx(stored_kb / 1e9)


def test_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["gpu_images_per_s=100"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["64"]["limit"] == "models"


@pytest.mark.parametrize("argument", ["gpus=3", "rows=many", "rows=-1", "rows"])
def test_unknown_or_impossible_figure_is_refused(argument: str) -> None:
    with pytest.raises(UserError, match="KEY=NUMBER"):
        read_figures([argument])
