import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from common.errors import UserError
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table
from pipeline.report.totals import Histogram, host_of
from pipeline.write.config import WriteConfig
from tests.pipeline.report.make_output import write_output


def rows_of(tables: list[pa.Table]) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.to_pylist()]


def kept_phrases(tables: list[pa.Table]) -> list[str]:
    texts = []
    for row in rows_of(tables):
        pairs = zip(row["boxes"] or (), row["box_scores"] or (), strict=True)
        for phrase in {box["phrase"] for box, verdict in pairs if verdict["removed"] is None}:
            chunk = row["noun_chunks"][phrase]
            texts.append(row["caption"][chunk["start"] : chunk["end"]].lower())
    return texts


def test_rows_read_are_rows_kept_plus_rows_dropped_by_stage_and_reason(output: Path, tables: list[pa.Table]) -> None:
    rows = json.loads((output / "stats.json").read_text())["rows"]
    expected: dict[str, Counter[str]] = {}
    for row in rows_of(tables):
        if row["status"] == "dropped":
            expected.setdefault(row["stage"], Counter())[row["reason"]] += 1
    assert rows["dropped"] == expected
    assert rows["read"] == 24 == rows["kept"] + sum(n for reasons in rows["dropped"].values() for n in reasons.values())


def test_boxes_and_phrases_are_counted_as_a_plain_loop_counts_them(output: Path, tables: list[pa.Table]) -> None:
    stats = json.loads((output / "stats.json").read_text())
    verdicts = [verdict["removed"] for row in rows_of(tables) for verdict in row["box_scores"] or ()]
    assert stats["boxes"]["found"] == len(verdicts)
    assert stats["boxes"]["kept"] == verdicts.count(None)
    assert stats["boxes"]["removed"] == Counter(reason for reason in verdicts if reason)
    texts = Counter(kept_phrases(tables))
    assert stats["phrases"]["grounded"] == texts.total()
    assert stats["top"]["phrases"] == [list(item) for item in sorted(texts.items(), key=lambda i: (-i[1], i[0]))[:30]]


def test_box_area_histogram_holds_the_kept_areas(output: Path, tables: list[pa.Table]) -> None:
    histogram = json.loads((output / "stats.json").read_text())["histograms"]["box_area_ratio"]
    areas = [
        (box["x_max"] - box["x_min"]) * (box["y_max"] - box["y_min"])
        for row in rows_of(tables)
        for box, verdict in zip(row["boxes"] or (), row["box_scores"] or (), strict=True)
        if verdict["removed"] is None
    ]
    assert histogram["counts"]["kept"] == np.histogram(areas, np.linspace(0, 1, 51))[0].tolist()
    assert histogram["mean"]["kept"] == pytest.approx(np.mean(areas), abs=1e-4)


def test_value_beyond_the_edges_is_counted_in_the_outermost_bin() -> None:
    histogram = Histogram(np.array([0.0, 1.0, 2.0]), "all")
    histogram.add("all", np.array([-3.0, 1.0, 2.0, 9.0, np.nan]))
    assert histogram.to_json()["counts"] == {"all": [1, 3]}


def test_only_the_shards_of_this_run_are_counted(tables: list[pa.Table], tmp_path: Path) -> None:
    output = write_output(tmp_path, tables)
    assert build_stats(output, shards=[1])["rows"]["read"] == 12
    assert build_stats(output)["rows"]["read"] == 24


def test_image_of_two_shards_is_counted_as_repeated(tables: list[pa.Table], tmp_path: Path) -> None:
    output = write_output(tmp_path, [tables[0], tables[0]])
    duplicates = build_stats(output)["duplicates"]
    assert duplicates["repeated"] == duplicates["distinct"] == duplicates["images"] / 2 > 0


def test_row_unaccounted_for_in_a_manifest_stops_the_report(tables: list[pa.Table], tmp_path: Path) -> None:
    output = write_output(tmp_path, tables[:1])
    file = tmp_path / "_manifests/00000.json"
    manifest = json.loads(file.read_text())
    manifest["counts"]["kept"] -= 1
    file.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="12 rows read"):
        build_stats(output)
    manifest["counts"]["read"] -= 1
    file.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="disagree"):
        build_stats(output)


def test_run_without_arrow_files_counts_the_same_rows_phrases_and_boxes(
    output: Path, tables: list[pa.Table], tmp_path: Path
) -> None:
    stats = build_stats(write_output(tmp_path, tables, WriteConfig(formats=("train",)), timings=False))
    expected = json.loads((output / "stats.json").read_text())
    for name in ("rows", "phrases", "boxes"):
        assert stats[name] == expected[name]
    assert all((stats["boxes"]["kept"], stats["boxes"]["removed"], stats["phrases"]["removed"]))
    assert (stats["without_rows"], expected["without_rows"]) == (2, 0)
    assert stats["stages"] == {}


def test_output_without_a_finished_shard_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished shard"):
        build_stats(str(tmp_path))


def test_seconds_of_a_stage_add_up_over_the_shards(output: Path) -> None:
    stages = json.loads((output / "stats.json").read_text())["stages"]
    assert list(stages) == ["read", "download", "captions", "parse", "ground", "score", "write"]
    assert stages["ground"] == {
        "seconds": pytest.approx(24 * 0.06),
        "rows": 24.0,
        "rows_per_second": pytest.approx(16.67),
    }


def test_host_of_a_broken_address_is_no_error() -> None:
    assert host_of("http://[::1/x") == host_of(None) == host_of("cat.jpg") == "(no host)"
    assert host_of("https://user:secret@Example.org:8080/x") == "example.org"


def test_summary_names_every_reason_with_its_count(output: Path) -> None:
    stats = json.loads((output / "stats.json").read_text())
    text = summary_table(stats)
    for stage, reasons in stats["rows"]["dropped"].items():
        for reason, n in reasons.items():
            assert any(line.split() == [f"{stage}:", reason, str(n)] for line in text.splitlines())
    assert "precision 0.950, recall 0.800" in text


def test_shards_of_another_version_of_the_schemas_are_named(output: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(output, tmp_path / "copy")
    path = copy / "_manifests" / "00001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": "0.9"}))
    with pytest.raises(UserError, match=r"shard 1 of .* has schema 0\.9"):
        build_stats(str(copy))
