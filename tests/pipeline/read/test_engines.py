"""Folders and tables as other engines write them: read, or refused by name."""

import decimal
import json
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from hypergrit_common.errors import UserError
from pipeline.read import listing
from pipeline.read.listing import list_files
from tests.pipeline.read.test_stage import read_all

ROW = {"url": "http://a", "caption": "a dog"}
DATES = pa.array([0, 2**50, None], pa.timestamp("ms"))
LATEST = 253_402_300_799_000_000  # microseconds: the last second of the year 9999


def spark(folder: Path, name: str) -> Path:
    """Write a table as Spark does: a folder with the name of a file."""
    (folder / name).mkdir(parents=True)
    (folder / name / "_SUCCESS").touch()
    for i in range(2):
        (folder / name / f".part-0000{i}{Path(name).suffix}.crc").write_bytes(b"crc")
        part = folder / name / f"part-0000{i}{Path(name).suffix}"
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist([ROW]), part)
        else:
            part.write_text("url,caption\nhttp://a,a dog\n" if name.endswith(".csv") else json.dumps(ROW) + "\n")
    return folder / name


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.json", "x.jsonl"])
def test_a_folder_with_the_name_of_a_file_is_a_folder(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = spark(tmp_path / "in", name)
    for input in (str(folder), f"{folder}/", str(tmp_path / "in"), f"{tmp_path}/in/x.*", f"{tmp_path}/in/*"):
        assert [row["caption_original"] for row in read_all(input)] == ["a dog"] * 2, input
    assert caplog.text == ""
    (tmp_path / f"in/y{folder.suffix}").write_bytes(next(folder.glob("part*")).read_bytes())
    assert len(read_all(f"{tmp_path}/in/*{folder.suffix}")) == 3


def test_a_prefix_of_a_store_is_a_folder_too() -> None:
    fs = fsspec.filesystem("memory")
    for name in ("_SUCCESS", "k=1/part-0.jsonl", "k=2/part-0.jsonl"):
        fs.pipe(f"/engines/x.jsonl/{name}", json.dumps(ROW).encode())
    for input in ("memory://engines/x.jsonl", "memory://engines/*.jsonl", "memory://engines/"):
        assert [json.loads(row["extra"]) for row in read_all(input)] == [{"k": 1}, {"k": 2}]
    fs.rm("/engines", recursive=True)


@pytest.mark.parametrize(
    ("engine", "log"),
    [("Delta", "_delta_log/00000.json"), ("Iceberg", "metadata/v1.metadata.json"),
     ("Hudi", ".hoodie/hoodie.properties")],
)  # fmt: skip
def test_tables_with_deleted_rows_are_refused_by_name(tmp_path: Path, engine: str, log: str) -> None:
    folder = spark(tmp_path, "x.parquet")
    (folder / log).parent.mkdir()
    (folder / log).write_text("{}")
    inputs = [folder, tmp_path, f"{tmp_path}/*", *([f"{folder}/*.parquet"] if engine != "Hudi" else [])]
    for input in inputs:
        with pytest.raises(UserError, match=rf"the input folder {folder} is a table of {engine}, .*write_input"):
            list_files(str(input))


@pytest.mark.parametrize(("engine", "log"), [("Delta", "_delta_log/0.json"), ("Iceberg", "metadata/0-a.metadata.json")])
def test_a_part_of_a_table_is_refused_too(tmp_path: Path, engine: str, log: str) -> None:
    part = spark(tmp_path / "table/data/lang=en", "x.parquet")
    inputs = (
        part,
        part / "part-00000.parquet",
        part.parent,
        f"{part}/*.parquet",
        f"{tmp_path}/table/data/*/*/*.parquet",
    )
    for place in ("metadata/s.avro", "data/metadata/info.json"):
        (tmp_path / "table" / place).parent.mkdir(exist_ok=True)
        (tmp_path / "table" / place).touch()
    assert [len(list_files(str(input))) for input in inputs] == [2, 1, 2, 2, 2]
    (tmp_path / "table" / log).parent.mkdir(exist_ok=True)
    (tmp_path / "table" / log).write_text("{}")
    for input in inputs:
        with pytest.raises(UserError, match=rf"the input folder {tmp_path}/table is a table of {engine}"):
            list_files(str(input))


def test_folders_above_several_files_are_checked_for_tables_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(8):
        pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / f"{i}.parquet")
    asked, exists = list[str](), LocalFileSystem.exists
    monkeypatch.setattr(LocalFileSystem, "exists", lambda fs, path: (asked.append(path), exists(fs, path))[1])
    monkeypatch.setattr(listing, "map_concurrently", map)
    assert len(list_files(f"{tmp_path}/{{0..7}}.parquet")) == 8
    logs = [path for path in asked if path.endswith("_delta_log")]
    assert f"{tmp_path}/_delta_log" in logs
    assert len(logs) == len({*logs}) == len(tmp_path.parts) - 1


def test_a_store_that_can_name_nothing_above_a_repository_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(method: Any, fs: MemoryFileSystem, path: str, **options: Any) -> Any:
        if len(path.strip("/").split("/")) < 4:  # as hf://, whose paths begin with kind, owner and name of a repository
            raise ValueError(f"Invalid HF URI '{path}'")
        return method(fs, path, **options)

    fs, folder = MemoryFileSystem(), "datasets/ann/dogs"
    fs.pipe_file(f"/{folder}/data/x.jsonl", b"{}")
    for name in ("exists", "ls"):
        method = getattr(MemoryFileSystem, name)
        monkeypatch.setattr(
            MemoryFileSystem, name, lambda *args, method=method, **options: checked(method, *args, **options)
        )
    for input in ("data/x.jsonl", "data"):
        assert list_files(f"memory://{folder}/{input}") == [(f"memory:///{folder}/data/x.jsonl", 2)]
    fs.pipe_file(f"/{folder}/_delta_log/0.json", b"{}")
    with pytest.raises(UserError, match=f"{folder} is a table of Delta"):
        list_files(f"memory://{folder}/data/*.jsonl")
    monkeypatch.undo()
    fs.rm("/datasets", recursive=True)


def test_arrow_files_are_refused_with_what_to_write(tmp_path: Path) -> None:
    for name in ("data-00000-of-00001.arrow", "dataset_info.json", "state.json"):
        (tmp_path / name).write_text('{"citation": "", "features": {}}')
    for input in (tmp_path, tmp_path / "data-00000-of-00001.arrow"):
        with pytest.raises(UserError, match=r"is an Arrow file, .*load_from_disk\(FOLDER\).to_parquet\(FILE\)"):
            list_files(str(input))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (DATES, "<value out of range: 1125899906842624>"),
        (pa.array([0, LATEST, None], pa.timestamp("us", "Asia/Tokyo")), "9999-12-31 23:59:59.000000Z"),
        (pa.array([0, 1, None], pa.timestamp("us", "Mars/Base")), "1970-01-01 00:00:00.000001Z"),
        (pa.array([0, 1, None], pa.timestamp("us", "+24:00")), "1970-01-01 00:00:00.000001Z"),
        (pa.array([0, 2**31 - 1, None], pa.date32()), "<value out of range: 2147483647>"),
        (pa.array([0, 2**62, None], pa.duration("s")), str(2**62)),
        (pa.array([b"x", b"caf\xe9", None]).view(pa.string()), "caf\ufffd"),
        (pa.array([[0], [1, 2**50], None], pa.list_(pa.timestamp("ms"))),
         ["1970-01-01 00:00:00.001000", "<value out of range: 1125899906842624>"]),
        (pa.StructArray.from_arrays([DATES, pa.array(["a", "b", "c"])], ["t", "s"]),
         {"t": "<value out of range: 1125899906842624>", "s": "b"}),
    ],
)  # fmt: skip
def test_a_value_that_is_not_needed_drops_no_row(tmp_path: Path, column: pa.Array, expected: Any) -> None:
    pq.write_table(pa.table({"url": ["http://a"] * 3, "caption": ["x", "y", "z"], "v": column}), tmp_path / "a.parquet")
    rows = read_all(tmp_path)
    assert [row["reason"] for row in rows] == [None] * 3
    assert json.loads(rows[1]["extra"]) == {"v": expected}


def test_dates_of_96_bits_after_the_end_of_nanoseconds_are_right(tmp_path: Path) -> None:
    table = pa.table({"url": ["http://a"], "caption": ["x"], "v": pa.array([LATEST], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert [row["extra"] for row in read_all(tmp_path)] == ['{"v": "9999-12-31 23:59:59"}']


OID = {"$oid": "65a1"}
ID = uuid.UUID(int=2**127 + 255)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([decimal.Decimal(10) ** 37, None], pa.decimal128(38, 0)), [f"1{'0' * 37}", None]),
        (pa.array([ID.bytes, b"abc-1"]), [ID.hex, "abc-1"]),
        (pa.array([ID.bytes, None], pa.binary(16)), [ID.hex, None]),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([ID.bytes, None], pa.binary(16))), [str(ID), None]),
        (pa.array([0, 2**50], pa.timestamp("ms")), ["1970-01-01 00:00:00", "<value out of range: 1125899906842624>"]),
        (pa.array([0, 1], pa.date32()), ["1970-01-01", "1970-01-02"]),
        (pa.array([OID, OID]), ['{"$oid": "65a1"}'] * 2),
        (pa.array([7.0, float("nan")]), ["7", None]),
        (pa.array([-1.5, 2.0**60]), ["-1.5", "1.152921504606847e+18"]),
    ],
)
@pytest.mark.parametrize("name", ["IMAGE_ID", "key"])
def test_an_identifier_of_any_type_is_its_text(tmp_path: Path, name: str, values: pa.Array, expected: Any) -> None:
    pq.write_table(pa.table({"url": ["http://a"] * 2, "caption": ["x", "y"], name: values}), tmp_path / "a.parquet")
    rows = read_all(tmp_path)
    assert [(row["id"], row["reason"]) for row in rows] == [(text, None) for text in expected]
