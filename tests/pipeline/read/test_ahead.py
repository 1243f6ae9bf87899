"""Rows that one process reads for others are those that each reads itself, or are left to it."""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from pipeline.read import parquet
from pipeline.read.config import ReadConfig
from pipeline.read.parquet import can_be_ahead, pack_rows, provided
from pipeline.read.plan import plan_shards
from pipeline.read.source import read_shard
from pipeline.read.types import ShardPlan

CONFIG = ReadConfig()


def write(path: Path, n: int, **columns: list[object]) -> Path:
    """A file in row groups of 700 rows. Captions repeat, so that they are read as a dictionary."""
    rows = {"url": [f"http://example.org/{path.stem}/{i}.jpg" for i in range(n)]}
    table = pa.table(rows | {"caption": [f"{i % 5} dogs" if i % 7 else None for i in range(n)]} | columns)
    pq.write_table(table, path, row_group_size=700)
    return path


def plans_of(folder: Path, rows_per_shard: int = 300) -> list[ShardPlan]:
    parquet._last.clear()
    return [with_version(plan) for plan in plan_shards(str(folder), rows_per_shard, None, CONFIG)]


def with_version(plan: ShardPlan) -> ShardPlan:
    pieces = [replace(piece, version=str(Path(piece.path).stat().st_mtime_ns)) for piece in plan.pieces]
    return replace(plan, pieces=tuple(pieces))


def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no parquet file be opened from now on."""

    def refuse(*_: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(parquet.Stream, "__init__", refuse)


def test_rows_of_files_with_different_columns_are_those_that_each_shard_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.parquet", 1650)
    write(tmp_path / "b.parquet", 1000, score=[i / 7 for i in range(1000)])
    plans = plans_of(tmp_path)
    expected = [read_shard(plan, CONFIG) for plan in plans]
    assert any(len(plan.pieces) == 2 for plan in plans)
    parquet._last.clear()
    packed = [pack_rows(plan, CONFIG) for plan in plans]
    without_files(monkeypatch)
    for plan, rows, table in zip(plans, packed, expected, strict=True):
        with provided(plan, rows):
            assert read_shard(plan, CONFIG).equals(table)
    assert not parquet.given


def test_rows_that_were_not_provided_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 700)
    plan = plans_of(tmp_path)[1]
    expected = read_shard(plan, CONFIG)
    with provided(plan, None):
        assert read_shard(plan, CONFIG).equals(expected)
    with provided(plan, pack_rows(plan, CONFIG)):
        pass
    assert read_shard(plan, CONFIG).equals(expected)


def test_images_large_rows_and_other_formats_are_left_to_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", 20)
    (plan,) = plans_of(tmp_path)
    assert pack_rows(plan, CONFIG) is not None
    monkeypatch.setattr(parquet, "MAX_BYTES", 100)
    assert pack_rows(plan, CONFIG) is None
    monkeypatch.undo()
    pq.write_table(pa.table({"image": [b"jpeg"] * 20, "caption": ["a dog"] * 20}), path)
    (plan,) = plans_of(tmp_path)
    assert pack_rows(plan, CONFIG) is None
    assert can_be_ahead(plan)
    assert not can_be_ahead(replace(plan, pieces=(replace(plan.pieces[0], version=""),)))
    path.unlink()
    (tmp_path / "a.jsonl").write_text('{"url": "http://example.org/1.jpg", "caption": "a dog"}\n')
    assert not any(map(can_be_ahead, plans_of(tmp_path)))


def test_a_file_that_changed_after_its_rows_were_read_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 20)
    (plan,) = plans_of(tmp_path)
    packed = pack_rows(plan, CONFIG)
    os.utime(path, ns=(0, 1))
    with provided(plan, packed), pytest.raises(UserError, match="has changed since the job was planned"):
        read_shard(plan, CONFIG)
