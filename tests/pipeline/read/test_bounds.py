"""Reading in bounded memory and time: huge values of parquet, large images of tars, blank lines, rows that raise."""

import gzip
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common import arrow_sizes
from hypergrit_common.arrow_sizes import row_sizes
from hypergrit_common.errors import UserError
from pipeline.read import parquet, source
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.source import planned_rows, read_parts, read_shard
from tests.memory import memory_below
from tests.patience import linear_time
from tests.pipeline.poison import RustPanic
from tests.pipeline.read.test_stage import read_all, write_tar

MB = 1_000_000
HUGE = "x" * 20 * MB


@pytest.mark.parametrize(
    ("value", "small"),
    [(HUGE, "a"), ([HUGE[: 5 * MB]] * 4, ["a"]), ({"a": {"b": HUGE}}, {"a": {"b": "a"}}), ([[("k", HUGE)]], [[]])],
    ids=["text", "list", "struct", "map"],
)
@pytest.mark.parametrize("is_coded", [pytest.param(True, marks=pytest.mark.rest), False], ids=["dictionary", "plain"])
def test_huge_values_of_a_parquet_file_are_dropped_before_they_are_converted(
    tmp_path: Path, value: Any, small: Any, is_coded: bool
) -> None:
    n = 40 if is_coded else 2
    names, captions = [f"http://a/{i}" for i in range(n + 1)], ["a dog"] * (n + 1)
    kind = pa.list_(pa.map_(pa.string(), pa.string())) if isinstance(small, list) and small == [[]] else None
    values = pa.array([small] + [value] * n, kind)
    table = pa.table({"url": names, "caption": captions, "more": values})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=is_coded, dictionary_pagesize_limit=1 << 30)
    del table, values
    with memory_below(30 * MB):
        rows = read_all(tmp_path / "a.parquet", rows_per_shard=1000)
    assert [row["reason"] for row in rows] == [None] + ["bad_row"] * n
    assert "more than the limit of 16777216" in rows[1]["detail"]


def test_sizes_count_what_each_row_holds() -> None:
    texts = pa.array(["größe", None, "", "abc"])
    assert row_sizes(texts).tolist() == [7, 0, 0, 3]
    assert row_sizes(texts.slice(2)).tolist() == [0, 3]
    assert row_sizes(texts.dictionary_encode().slice(2)).tolist() == [0, 3]
    assert row_sizes(texts.cast(pa.large_string()).dictionary_encode()).tolist() == [7, 0, 0, 3]
    assert row_sizes(pa.array([["a", "bb"], None, []])).tolist() == [7, 0, 0]
    assert row_sizes(pa.array([["a", "bb"], ["ccc"]], pa.list_(pa.string())).slice(1)).tolist() == [5]
    pairs = pa.array([["a", "bb"], ["c", "d"]], pa.list_(pa.string(), 2))
    assert row_sizes(pairs).tolist() == [7, 6]
    assert row_sizes(pairs.slice(1)).tolist() == [6]
    assert row_sizes(pa.array([{"a": "x", "b": 1}, {"a": "yy", "b": 2}]).slice(1)).tolist() == [4]
    assert row_sizes(pa.array([[("k", "vv")]], pa.map_(pa.string(), pa.string()))).tolist() == [5]


def test_many_rows_in_small_batches_are_the_rows_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"url": f"http://a/{i}", "caption": f"{i}" * (i % 50), "n": i} for i in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=700)
    whole = read_all(tmp_path / "a.parquet", rows_per_shard=999)
    monkeypatch.setattr("pipeline.read.parquet.BATCH_BYTES", 1000)
    assert read_all(tmp_path / "a.parquet", rows_per_shard=999) == whole
    assert [row["url"] for row in whole] == [row["url"] for row in rows]


def test_images_of_a_tar_are_handed_on_in_parts_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{i}.jpg": bytes([i]) * 1000 for i in range(10)})
    (plan,) = plan_shards(str(path), 100, None, ReadConfig())
    whole = read_shard(plan, ReadConfig())
    monkeypatch.setattr(source, "PART_BYTES", 2500)
    parts = [table for table, _ in read_parts(plan, ReadConfig())]
    assert [table.num_rows for table in parts] == [3, 3, 3, 1]
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist()


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), MemoryError(), RustPanic("panic")])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_row_that_raises_while_it_is_read_is_dropped_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    path, rows = tmp_path / name, [{"url": f"http://a/{i}", "caption": "x"} for i in range(5)]
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f'{{"url": "http://a/{i}", "caption": "x"}}\n' for i in range(5)))
    to_row, calls = source.to_row, list[str]()

    def poisoned(record: Any, config: ReadConfig) -> dict[str, Any]:
        calls.append(record["url"])
        if record["url"] == "http://a/3" or calls == ["http://a/0"]:  # the first call fails once
            raise error
        return to_row(record, config)

    monkeypatch.setattr(source, "to_row", poisoned)
    (plan,) = plan_shards(str(path), 100, None, ReadConfig())
    ((table, faults),) = list(read_parts(plan, ReadConfig()))
    assert table["reason"].to_pylist() == [None, None, None, "internal_error", None]
    assert table["url"].to_pylist()[0] == "http://a/0"
    assert [(fault.key, fault.stage) for fault in faults] == [("000000000003", "read")]
    assert type(error).__name__ in faults[0].detail
    assert "poisoned" in faults[0].traceback


def test_only_the_planned_rows_that_are_kept_are_parsed(tmp_path: Path) -> None:
    rows = [{"url": f"http://a/{i}", "caption": "x"} for i in range(9)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=2)
    plan = plan_shards(str(tmp_path), 7, None, ReadConfig())[0]
    ((table, _),) = read_parts(plan, ReadConfig(), planned_rows(plan).take(pa.array([2, 5])))
    assert table["url"].to_pylist() == ["http://a/2", "http://a/5"]


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" " * 999 + b"\n"])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_blank_lines_without_end_are_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, blank: bytes
) -> None:
    if blank[:1] == b" " and "csv" in name:
        return  # a row with one field
    path = tmp_path / name
    row = b'{"url": "http://a", "caption": "x"}\n' if "jsonl" in name else b"url,caption\nhttp://a,x\n"
    with gzip.open(path, "wb", 1) as file:
        file.write(row)
        for _ in range(200):
            file.write(blank * (MB // len(blank)))
    with linear_time():
        assert len(read_all(path)) == 1
    assert "bytes of blank lines before line" in caplog.text


def test_blank_lines_within_the_limit_change_nothing(tmp_path: Path) -> None:
    path, row = tmp_path / "a.jsonl", '{"url": "http://a/%d", "caption": "x"}\n'
    path.write_text("".join(row % i + "\n" * (i * 1000) + " \n" for i in range(20)))
    assert [row["url"] for row in read_all(path, 3)] == [f"http://a/{i}" for i in range(20)]


def test_of_a_damaged_file_the_rows_before_the_damage_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = write_tar(tmp_path / "b.tar", {f"{i}.jpg": bytes([i]) * 1000 for i in range(5)}).read_bytes()
    (tmp_path / "b.tar").write_bytes(whole[:4000])
    write_tar(tmp_path / "c.tar", {"9.jpg": b"other"})
    with caplog.at_level(logging.WARNING):
        rows = read_all(tmp_path)
    assert [row["image"] for row in rows] == [bytes([0]) * 1000, bytes([1]) * 1000, b"other"]
    assert "only 2 rows of a damaged file can be read" in caplog.text
    assert f"{tmp_path}/b.tar: truncated inside 2.jpg" in caplog.text


def test_a_file_without_a_readable_row_is_left_out_only_on_request(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": ["http://a"], "caption": ["x"]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-8])
    with pytest.raises(UserError, match=r"b\.parquet.*read\.skip_damaged=true"):
        read_all(tmp_path)
    assert len(read_all(tmp_path, skip_damaged=True)) == 1


def test_a_carriage_return_in_a_csv_row_is_named_with_its_fix(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"url,caption\nhttp://a/0,a\rb\nhttp://a/1,x\n")
    rows = read_all(path)
    assert [row["reason"] for row in rows] == ["bad_row", None]
    assert f"0/{path.name}, line 2: a carriage return (\\r)" in rows[0]["detail"]
    path.write_bytes(b"url,caption\rhttp://a/0,a\r")
    with pytest.raises(UserError, match=r"a\.csv: line 1: a carriage return .*end lines with"):
        read_all(path)


def test_lists_of_repeated_numbers_are_read_in_small_batches_and_dropped_before_they_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(6 * MB, np.int64)), MB).cast(pa.list_(pa.int64()))
    table = pa.table({"url": ["ftp://x/1"] * 6, "caption": ["a cat"] * 6, "numbers": numbers})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    (plan,) = plan_shards(str(tmp_path / "a.parquet"), 100, None, ReadConfig())
    assert {batch.num_rows for _, batch in parquet.read_batches(plan.pieces[0], ReadConfig())} <= {1, 2}
    monkeypatch.setattr(parquet, "as_records", None)
    table = read_shard(plan, ReadConfig())
    assert set(table["reason"].to_pylist()) == {"bad_row"}
    assert "the row has 1000000 values in lists, more than the limit of 699050" in table["detail"][0].as_py()


def test_batches_are_small_where_few_rows_may_have_all_values_of_a_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (arrow_sizes, parquet):
        monkeypatch.setattr(module, "LARGE", MB)
    ends = np.minimum(np.arange(1001), 10) * 20_000  # ten of a thousand rows
    numbers = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.zeros(ends[-1], np.int64)))
    texts = pa.array(["a" * 1000] * 1000)
    encoding = {"column_encoding": {"t": "DELTA_BYTE_ARRAY"}, "use_dictionary": ["n"]}
    for name, column, most in (("n", numbers, 1), ("t", texts, 999)):
        table = pa.table({"url": pa.array(["ftp://x/1"] * 1000, pa.large_string()), name: column})
        pq.write_table(table, tmp_path / f"{name}.parquet", compression="zstd", **encoding)
        metadata = pq.read_metadata(tmp_path / f"{name}.parquet")
        assert parquet._batch_rows(metadata, 0, ["url", name]) <= most
        assert parquet._batch_rows(metadata, 0, ["url"]) == parquet.BATCH_ROWS


def test_short_rows_that_are_decoded_a_few_at_a_time_are_joined_to_larger_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"caption {i} " * (5 if i % 300 else 2000) for i in range(900)]
    table = pa.table({"url": [f"http://a/{i}" for i in range(900)], "caption": texts, "kind": ["a", "b", None] * 300})
    pq.write_table(
        table, tmp_path / "a.parquet", use_dictionary=["kind"], column_encoding={"caption": "DELTA_BYTE_ARRAY"}
    )
    monkeypatch.setattr(parquet, "LARGE", 1000)  # one row at a time
    monkeypatch.setattr(parquet, "BATCH_BYTES", 16_000)
    (plan,) = plan_shards(str(tmp_path / "a.parquet"), 900, None, ReadConfig())
    batches = [batch for _, batch in parquet.read_batches(plan.pieces[0], ReadConfig())]
    assert pa.Table.from_batches([batch.cast(table.schema) for batch in batches]).equals(table)
    assert max(batch.num_rows for batch in batches) == parquet.MAX_JOINED
    assert [batch.num_rows for batch in batches if batch.nbytes > 16_000] == [1, 1, 1]


def test_a_short_row_is_kept_beside_a_long_list_of_captions(tmp_path: Path) -> None:
    captions = pa.array([["a cat"] + [""] * 800_000, ["a dog"]])
    pq.write_table(pa.table({"url": ["ftp://x/1"] * 2, "caption": captions}), tmp_path / "a.parquet")
    (plan,) = plan_shards(str(tmp_path / "a.parquet"), 100, None, ReadConfig(captions="first"))
    assert read_shard(plan, ReadConfig(captions="first"))["caption_original"].to_pylist() == ["a cat", "a dog"]
