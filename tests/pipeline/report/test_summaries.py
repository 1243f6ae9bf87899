"""Summaries and rollups: the same statistics as the rows of arrow/, the same bytes, and never those of other shards."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config import WriteConfig
from pipeline.output.ledger import read_batches, read_manifests, read_manifests_of, write_summary
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.report.stats import Rollups, add_shards, build_stats, collect, roll_up
from pipeline.summary.totals import Summary
from schemas.files import ROLLUP_FILE, ROLLUP_TIMINGS_FILE, SUMMARY_FILE
from tests.pipeline.output.write.shards import dropped_row, kept_row, plan
from tests.pipeline.output.write.shards import table as table_of
from tests.pipeline.report.make_output import PROVENANCE, write_output

ARROW = WriteConfig(formats=("arrow",))


def write(output: Path, index: int, n_rows: int = 2, n_dropped: int = 1) -> None:
    """Write a shard of the same rows, the last of which are dropped."""
    rows = [dropped_row(i) if i >= n_rows - n_dropped else kept_row(i) for i in range(n_rows)]
    write_shard(table_of(rows), plan(index, n_rows), ARROW, str(output), PROVENANCE)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty shards, those of two rollups."""
    folder = tmp_path_factory.mktemp("many")
    for index in (*range(38), 1000, 1001):
        write(folder, index)
    return folder


@pytest.fixture
def copy(many: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(many, tmp_path / "out"))


def summaries(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((output / "_summaries").iterdir())}


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Fail if the report reads a file whose path has one of these parts."""
    read: Callable[[Store, str], bytes | None] = Store.read

    def refuse(store: Store, relative: str) -> bytes | None:
        assert not any(name in relative for name in names), relative
        return read(store, relative)

    monkeypatch.setattr(Store, "read", refuse)


def no_rows(*_: object) -> None:
    raise AssertionError("arrow/ is read")


def test_the_summary_of_a_worker_has_the_bytes_of_one_counted_from_arrow(
    tables: list[pa.Table], tmp_path: Path
) -> None:
    output = write_output(tmp_path, tables)
    written = summaries(tmp_path)
    assert list(written) == ["00000.json.zst", "00001.json.zst"]
    shutil.rmtree(tmp_path / "_summaries")
    store = Store(output)
    for manifest in read_manifests(store):
        write_summary(store, manifest)
    assert summaries(tmp_path) == written


def test_statistics_do_not_depend_on_where_they_are_read(
    tables: list[pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = write_output(tmp_path, tables)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.output.ledger.read_batches", no_rows)
        from_summaries = build_stats(output)
        patch.setattr("pipeline.report.stats.MIN_SHARDS", 2)
        build_stats(output, holds_lease=True)
        forbid(patch, "_summaries")
        assert build_stats(output) == from_summaries
    shutil.rmtree(tmp_path / "_rollup")
    shutil.rmtree(tmp_path / "_summaries")
    assert build_stats(output) == from_summaries
    assert (tmp_path / "_summaries/00001.json.zst").exists()  # for the next report


def test_a_report_with_rollups_reads_nothing_of_single_shards(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = build_stats(str(copy), holds_lease=True)
    assert sorted(path.name for path in (copy / "_rollup").iterdir()) == ["00000.json.zst"]  # 2 are too few
    assert (copy / ROLLUP_TIMINGS_FILE.format(0)).exists()
    monkeypatch.setattr("pipeline.output.ledger.read_batches", no_rows)
    forbid(monkeypatch, "_summaries/0000", "_summaries/0003", "_manifests/00001", "_manifests/00037")
    assert build_stats(str(copy)) == stats
    assert stats["rows"] == {"read": 80, "kept": 40, "dropped": {"download": {"http_error": 40}}, "unfinished": 0}
    assert stats["places"]["dropped"] == {"download": {"http_error": list(range(16))}}


def test_rollups_have_the_same_bytes_whoever_writes_them(copy: Path) -> None:
    store = Store(str(copy))
    roll_up(store, 0, range(1000))
    first = (copy / ROLLUP_FILE.path(0)).read_bytes()
    shutil.rmtree(copy / "_rollup")
    build_stats(str(copy), holds_lease=True)
    assert (copy / ROLLUP_FILE.path(0)).read_bytes() == first
    roll_up(store, 1, (1000, 1001))
    assert not (copy / ROLLUP_FILE.path(1)).exists()


def test_a_report_that_does_not_hold_the_lease_writes_no_rollup(copy: Path) -> None:
    build_stats(str(copy))
    assert not (copy / "_rollup").exists()


def test_a_shard_that_is_written_again_takes_its_rollup_away(copy: Path) -> None:
    before = build_stats(str(copy), holds_lease=True)
    (copy / "_manifests/00007.json").unlink()  # the fix for a damaged shard
    assert build_stats(str(copy))["rows"]["read"] == 78
    assert (copy / ROLLUP_FILE.path(0)).exists()
    write(copy, 7, n_dropped=0)
    assert not (copy / ROLLUP_FILE.path(0)).exists()
    assert build_stats(str(copy))["rows"]["kept"] == before["rows"]["kept"] + 1
    build_stats(str(copy), holds_lease=True)
    assert build_stats(str(copy))["rows"]["kept"] == before["rows"]["kept"] + 1


def test_a_rollup_of_other_shards_is_not_used_and_removed_when_nothing_is_left(copy: Path) -> None:
    build_stats(str(copy), holds_lease=True)
    shutil.copy(copy / ROLLUP_FILE.path(0), copy / ROLLUP_FILE.path(1))
    shutil.copy(copy / ROLLUP_FILE.path(0), copy / ROLLUP_FILE.path(5))
    assert build_stats(str(copy))["rows"]["read"] == 80
    assert build_stats(str(copy), holds_lease=True)["rows"]["read"] == 80
    assert [path.name for path in (copy / "_rollup").iterdir()] == ["00000.json.zst"]


def test_a_damaged_shard_does_not_end_the_job_that_rolls_it_up(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    (copy / SUMMARY_FILE.path(3)).unlink()
    (copy / "arrow/00003.arrow").write_bytes(b"ARROW1\0\0")
    with caplog.at_level(logging.WARNING):
        roll_up(Store(str(copy)), 0, range(1000))
    assert "the statistics of shards 0 to 999 are left to the report" in caplog.text
    assert not (copy / "_rollup").exists()


def test_merging_is_associative_and_commutative(many: Path) -> None:
    store = Store(str(many))
    parts = [add_shards(store, indices, keep=False)[0].summary for indices in ([0, 1], [2], range(3, 9))]

    def merged(*summaries: Summary) -> dict[str, Any]:
        whole = Summary()
        for summary in summaries:
            whole.merge(summary)
        return whole.to_json()

    a, b, c = parts
    left = Summary()
    left.merge(a)
    left.merge(b)
    right = Summary()
    right.merge(c)
    right.merge(b)
    assert merged(left, c) == merged(a, right) == merged(c, a, b) == merged(a, b, c)


def test_only_the_chosen_shards_are_counted(copy: Path) -> None:
    build_stats(str(copy), holds_lease=True)
    part = collect(Store(str(copy)), only=[5, 1001, 4000])
    assert part.shards == [5, 1001]
    assert part.summary.rows.to_counts()["read"] == 4
    assert list(read_batches(Store(str(copy)), read_manifests_of(Store(str(copy)), [5])[0], ["key"]))


def test_a_running_job_writes_the_rollup_of_a_thousand_shards_when_the_last_is_reported(copy: Path) -> None:
    store = Store(str(copy))
    with Rollups(store, [*range(38), 1000, 1001]) as rollups:
        for index in (*range(1, 38), 1000, 1001):
            rollups.add(index)
        assert not (copy / "_rollup").exists()
        rollups.add(0)
    assert [path.name for path in (copy / "_rollup").iterdir()] == ["00000.json.zst"]
    written = (copy / ROLLUP_FILE.path(0)).read_bytes()
    build_stats(str(copy), holds_lease=True)
    assert (copy / ROLLUP_FILE.path(0)).read_bytes() == written
