import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.config import WriteConfig
from pipeline.output.manifest import write_failed
from pipeline.output.store import Store
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table
from pipeline.summary.histogram import Histogram
from pipeline.summary.totals import host_of
from schemas.rows import VERSION
from schemas.status import shown_stage
from schemas.table import Drop, drop_rows, kept_indices
from tests.pipeline.report.make_output import write_output


def rows_of(tables: list[pa.Table]) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.to_pylist()]


def kept_phrases(tables: list[pa.Table]) -> list[str]:
    """Text of each phrase with a kept box, in lower case."""
    texts = []
    for row in rows_of(tables):
        pairs = zip(row["boxes"] or (), row["box_scores"] or (), strict=True)
        for phrase in {box["phrase"] for box, score in pairs if score["removed"] is None}:
            chunk = row["noun_chunks"][phrase]
            texts.append(row["caption"][chunk["start"] : chunk["end"]].lower())
    return texts


def test_rows_read_equal_rows_kept_plus_rows_dropped_by_stage_and_reason(output: Path, tables: list[pa.Table]) -> None:
    rows = json.loads((output / "stats.json").read_text())["rows"]
    expected: dict[str, Counter[str]] = {}
    for row in rows_of(tables):
        if row["status"] == "dropped":
            expected.setdefault(row["stage"], Counter())[row["reason"]] += 1
    assert rows["dropped"] == expected
    assert rows["read"] == 24 == rows["kept"] + sum(n for reasons in rows["dropped"].values() for n in reasons.values())


def test_counts_of_boxes_and_phrases_equal_those_of_a_loop_over_the_rows(output: Path, tables: list[pa.Table]) -> None:
    stats = json.loads((output / "stats.json").read_text())
    removals = [score["removed"] for row in rows_of(tables) for score in row["box_scores"] or ()]
    assert stats["boxes"]["found"] == len(removals)
    assert stats["boxes"]["kept"] == removals.count(None)
    assert stats["boxes"]["removed"] == Counter(reason for reason in removals if reason)
    texts = Counter(kept_phrases(tables))
    assert stats["phrases"]["grounded"] == texts.total()
    assert stats["top"]["phrases"] == [list(item) for item in sorted(texts.items(), key=lambda i: (-i[1], i[0]))[:30]]


def test_boxes_of_dropped_rows_are_not_kept(tables: list[pa.Table], tmp_path: Path) -> None:
    before = build_stats(write_output(tmp_path / "before", tables))
    table, kept = tables[0], kept_indices(tables[0])
    dropped = drop_rows(table, "write", dict.fromkeys(kept[:2], Drop("same_url", "0")))
    output = write_output(tmp_path / "out", [dropped, *tables[1:]])
    stats = build_stats(output)
    lost = [s["removed"] for row in table.take(kept[:2]).to_pylist() for s in row["box_scores"]].count(None)
    assert lost
    assert stats["boxes"]["removed"] == {**before["boxes"]["removed"], "row_dropped": lost}
    assert (stats["boxes"]["found"], stats["boxes"]["kept"]) == (
        before["boxes"]["found"],
        before["boxes"]["kept"] - lost,
    )
    manifests = [json.loads(path.read_text()) for path in Path(output, "_manifests").glob("*.json")]
    assert stats["boxes"]["kept"] == sum(manifest["boxes"] for manifest in manifests)
    assert stats["phrases"]["grounded"] == sum(manifest["phrases"] for manifest in manifests)
    assert stats["histograms"]["grounding_score"] != before["histograms"]["grounding_score"]


def test_kept_heads_and_removed_texts_equal_those_of_a_loop_over_the_rows(output: Path, tables: list[pa.Table]) -> None:
    top = json.loads((output / "stats.json").read_text())["top"]
    heads: Counter[str] = Counter()
    removed: dict[str, Counter[str]] = {}
    for row in rows_of(tables):
        for chunk in row["noun_chunks"] or ():
            if chunk["removed"] is None:
                heads[row["tokens"][chunk["root"]]["lemma"]] += 1
            else:
                text = row["caption"][chunk["start"] : chunk["end"]].lower()
                removed.setdefault(chunk["removed"], Counter())[text] += 1
    assert heads
    assert removed
    assert dict(top["kept_heads"]) == dict(sorted(heads.items(), key=lambda i: (-i[1], i[0]))[:30])
    assert {reason: dict(texts) for reason, texts in top["removed"].items()} == removed


def test_box_area_histogram_counts_the_areas_of_kept_boxes(output: Path, tables: list[pa.Table]) -> None:
    histogram = json.loads((output / "stats.json").read_text())["histograms"]["box_area_ratio"]
    areas = [
        (box["x_max"] - box["x_min"]) * (box["y_max"] - box["y_min"])
        for row in rows_of(tables)
        for box, score in zip(row["boxes"] or (), row["box_scores"] or (), strict=True)
        if score["removed"] is None
    ]
    assert histogram["counts"]["kept"] == np.histogram(areas, np.linspace(0, 1, 51))[0].tolist()
    assert histogram["mean"]["kept"] == pytest.approx(np.mean(areas), abs=1e-4)


def test_value_outside_the_edges_is_counted_in_the_outermost_bin() -> None:
    histogram = Histogram(np.array([0.0, 1.0, 2.0]), "all")
    histogram.add("all", np.array([-3.0, 1.0, 2.0, 9.0, np.nan]))
    assert histogram.to_statistics()["counts"] == {"all": [1, 3]}


def test_image_in_two_shards_is_counted_as_repeated(tables: list[pa.Table], tmp_path: Path) -> None:
    output = write_output(tmp_path, [tables[0], tables[0]])
    duplicates = build_stats(output)["duplicates"]
    assert duplicates["repeated"] == duplicates["distinct"] == duplicates["images"] / 2 > 0


def test_counts_of_a_manifest_that_do_not_add_up_are_an_error(tables: list[pa.Table], tmp_path: Path) -> None:
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


def test_counts_of_rows_phrases_and_boxes_are_the_same_without_arrow_files(
    output: Path, tables: list[pa.Table], tmp_path: Path
) -> None:
    stats = build_stats(write_output(tmp_path, tables, WriteConfig(formats=("train",)), timings=False))
    expected = json.loads((output / "stats.json").read_text())
    for name in ("rows", "phrases", "boxes"):
        assert stats[name] == expected[name]
    assert all((stats["boxes"]["kept"], stats["boxes"]["removed"], stats["phrases"]["removed"]))
    assert (stats["without_rows"], expected["without_rows"]) == (2, 0)
    assert stats["stages"] == {}


def test_if_all_shards_failed_the_report_counts_their_rows_as_unfinished(tmp_path: Path) -> None:
    write_failed(
        Store(str(tmp_path)),
        {"shard": 0, "rows": 7, "step": "prepare", "error": "x", "traceback": "", "attempts": 1},
    )
    stats = build_stats(str(tmp_path), shards=[0])
    assert stats["rows"] == {"read": 7, "kept": 0, "dropped": {}, "unfinished": 7}
    write_report(str(tmp_path))
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert "rows unfinished, in failed shards" in summary_table(stats)


def test_seconds_of_a_stage_are_added_up_over_the_shards(output: Path) -> None:
    stages = json.loads((output / "stats.json").read_text())["stages"]
    assert list(stages) == ["read", "download", "captions", "parse", "ground", "score", "write"]
    assert stages["ground"] == {
        "seconds": pytest.approx(24 * 0.06),
        "rows": 24.0,
        "rows_per_second": pytest.approx(16.67),
    }


def test_invalid_url_has_no_host() -> None:
    assert host_of("http://[::1/x") == host_of(None) == host_of("cat.jpg") == "(no host)"
    assert host_of("https://user:secret@Example.org:8080/x") == "example.org"


def test_summary_lists_every_reason_with_its_count(output: Path) -> None:
    stats = json.loads((output / "stats.json").read_text())
    text = summary_table(stats)
    for stage, reasons in stats["rows"]["dropped"].items():
        for reason, n in reasons.items():
            assert any(line.split() == [f"{shown_stage(stage, reason)}:", reason, str(n)] for line in text.splitlines())
    assert "precision 0.950, recall 0.800" in text


def test_error_for_a_shard_with_another_schema_version_names_both(output: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(output, tmp_path / "copy")
    path = copy / "_manifests" / "00001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": "0.9"}))
    with pytest.raises(
        UserError, match=rf"shard 1 of .* has schema 0\.9, but this version of HyperGRIT reads {VERSION}"
    ):
        build_stats(str(copy))
