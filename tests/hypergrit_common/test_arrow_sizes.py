"""Sizes of Arrow and parquet data before they are decoded."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common import arrow_sizes
from hypergrit_common.arrow_sizes import list_items, open_arrow_file, read_arrow_file, read_parquet, row_sizes

TEXT = "a" * 5_000_000


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that small data exceed."""
    monkeypatch.setattr(arrow_sizes, "LARGE", 1 << 20)


def arrow(table: pa.Table, compression: str | None, chunk: int = 1000) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return bytes(sink.getvalue().to_pybytes())


def read(content: bytes) -> pa.Table:
    """Read a file, whatever its columns."""
    return read_arrow_file(content, pa.ipc.open_file(content).schema)


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", **options)
    return file.getvalue()


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_an_arrow_file_of_few_bytes_with_a_long_text_is_refused_before_it_is_decompressed(compression: str) -> None:
    content = arrow(pa.table({"text": [TEXT, "b"]}), compression)
    allocated = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match=r"hold 5,\d{3},\d{3} bytes of data"):
        open_arrow_file(content)
    assert pa.total_allocated_bytes() - allocated < 100_000
    assert open_arrow_file(content, has_rows=True).num_record_batches == 1  # 4 MiB a row


def test_a_dictionary_that_repeats_a_text_is_refused(tmp_path: Path) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int16()), pa.array([TEXT[:100_000]]))
    with pytest.raises(ValueError, match="bytes of data"):
        read(arrow(pa.table({"name": codes}), "zstd"))
    with pytest.raises(ValueError, match="bytes of data"):
        read(arrow(pa.table({"name": pa.chunked_array([pa.array([TEXT])])}), "zstd"))


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_usual_files_are_read_whatever_their_compression(compression: str | None) -> None:
    numbers = [[1, 2], None, []] * 1000
    halves = pa.array([None] * 3000, pa.list_(pa.float16(), 4))
    table = pa.table({"text": [f"row {n}" for n in range(3000)], "numbers": numbers, "halves": halves})
    assert read_arrow_file(arrow(table, compression), table.schema).equals(table)
    assert open_arrow_file(arrow(table, compression)).read_all().equals(table)


def runs() -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([100], pa.int32()), pa.array(["x"]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["b"] * 100).cast(pa.string_view()),
        pa.array([b"b"] * 100, pa.binary_view()),
        pa.ListViewArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array([1] * 100, pa.int32()), pa.array([7])),
        pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array([[0] * 1000])),
        pa.UnionArray.from_sparse(pa.array([0] * 100, pa.int8()), [pa.nulls(100)]),
        pa.nulls(100),
        runs(),
        pa.StructArray.from_buffers(pa.struct([]), 100, [None]),
        pa.array([[]] * 100, pa.list_(pa.int8(), 0)),
        pa.array([b""] * 100, pa.binary(0)),
        pa.array([[None]] * 100, pa.list_(pa.null())),
        pa.array([{"a": None}] * 100, pa.struct({"a": pa.null()})),
    ],
    ids=lambda column: str(column.type),
)
def test_types_whose_rows_take_no_bytes_or_share_them_are_refused_before_a_batch_is_read(column: pa.Array) -> None:
    content = arrow(pa.table({"v": column}), None)
    with pytest.raises(ValueError, match=r"column v has the type .*, which is not written here"):
        open_arrow_file(content)
    with pytest.raises(ValueError, match="its columns are v, but should be key"):
        read_arrow_file(content, pa.schema({"key": pa.string()}))


def test_a_few_bytes_hold_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    content = arrow(pa.table({"v": [False] * 50_000}), "zstd", 50_000)
    assert len(content) < 1000
    assert open_arrow_file(content).read_all().num_rows == 50_000
    monkeypatch.setattr(arrow_sizes, "FEW_ROWS", 1000)
    for has_rows in (False, True):
        with pytest.raises(ValueError, match="hold 50,000 rows, far more than such a file has"):
            open_arrow_file(content, has_rows=has_rows)
    assert open_arrow_file(arrow(pa.table({"v": range(5000)}), None)).num_record_batches == 5


@pytest.mark.parametrize("cut", [slice(0), slice(9), slice(-1), slice(-20, None), slice(8, None)])
def test_a_damaged_arrow_file_is_an_error_that_callers_expect(cut: slice) -> None:
    with pytest.raises((ValueError, OSError), match=r"."):
        read(arrow(pa.table({"text": ["a"]}), "zstd")[cut])


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (pa.array([TEXT, "b"]), {"use_dictionary": False, "write_statistics": False}),
        (pa.array([TEXT[:100_000]] * 1000), {}),
        (pa.array([TEXT[:100_000]] * 10), {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}}),
        (pa.array([[0] * 1_000_000] * 2), {}),
    ],
    ids=["text", "dictionary", "delta", "numbers"],
)
def test_a_parquet_file_of_few_bytes_with_much_data_is_refused(
    values: pa.Array, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_sizes, "ROW_BYTES", 1 << 10)
    content = parquet(pa.table({"v": values}), **options)
    assert len(content) < 20_000
    with pytest.raises(ValueError, match=r"bytes of data|DELTA_BYTE_ARRAY"):
        read_parquet(content)


def test_many_rows_do_not_allow_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"v": ["a" * 100_000] * 100})
    monkeypatch.setattr(arrow_sizes, "LARGE", 1 << 20)
    content = parquet(table, use_dictionary=False)
    assert read_parquet(content).num_rows == 100
    monkeypatch.setattr(arrow_sizes, "MOST", 9_000_000)
    with pytest.raises(ValueError, match="bytes of data"):
        read_parquet(content)
    with pytest.raises(ValueError, match="bytes of data"):
        open_arrow_file(arrow(table, "zstd"), has_rows=True)


def test_texts_in_dictionaries_are_read_as_they_are() -> None:
    table = pa.table({"v": ["a", "b", None] * 10, "n": [[1.5], []] * 15})
    assert read_parquet(parquet(table), ["v"]).to_pylist() == table.select(["v"]).to_pylist()
    assert read_parquet(parquet(table)).to_pylist() == table.to_pylist()


@pytest.mark.parametrize(
    ("values", "kind", "items"),
    [
        ([[1, 2], None, []], pa.list_(pa.int64()), [2, 0, 0]),
        ([[[1], [2, 3]], [[]]], pa.list_(pa.large_list(pa.int8())), [5, 1]),
        ([{"a": [1, 2], "b": 1}, {"a": [], "b": 2}], None, [2, 0]),
        ([[{"a": [1]}, {"a": None}]], None, [3]),
        ([[1, 2], [3, 4]], pa.list_(pa.int8(), 2), [2, 2]),
        ([[("k", 1)], []], pa.map_(pa.string(), pa.int8()), [1, 0]),
        (["abc", None], None, [0, 0]),
    ],
)
def test_the_items_of_lists_are_counted_at_all_depths(values: list[Any], kind: pa.DataType, items: list[int]) -> None:
    array = pa.array(values, kind)
    assert list_items(array).tolist() == items
    assert list_items(array.slice(1)).tolist() == items[1:]


def test_lists_of_numbers_have_the_size_of_their_items() -> None:
    assert row_sizes(pa.array([[1, 2], None, [3]])).tolist() == [8, 0, 4]
    assert row_sizes(pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)).slice(1)).tolist() == [8]
