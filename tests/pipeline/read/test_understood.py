"""How the input was understood: what each format tells, that nothing is read again, and that hostile values are harmless."""

import base64
import io
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.output.inputs import with_cuts
from pipeline.read import parquet, streams
from pipeline.read.config import ReadConfig
from pipeline.read.listing import list_files
from pipeline.read.plan import cut_files
from pipeline.read.understood import Readings, input_lines, understood_input
from schemas.job import InputReading, JobRecord, UnderstoodInput
from tests.hypergrit_common.test_image_types import encoded

TABLE = {"image_url": ["http://a/1.jpg?sig=SECRET"], "TEXT": ["a dog"], "uid": ["7"], "licence": ["cc0"]}
ROW = {name: values[0] for name, values in TABLE.items()}
PNG = b"\x89PNG not decoded here"


def understood(path: Path, **config: Any) -> tuple[UnderstoodInput, list[tuple[str, str]]]:
    """How the files of a folder are understood, and the lines that tell it."""
    settings = ReadConfig(**config)
    files, readings = list_files(str(path)), Readings(settings)
    cut = cut_files(files, 2, None, settings, readings=readings)
    batch = {"files": [with_cuts({"cuts": []}, file, {}) for file in cut]}  # type: ignore[typeddict-item]
    record = {"input": {"readings": readings.found, "not_read": files.not_read}, "batches": [batch]}
    found = understood_input(record)
    assert found is not None
    return found, list(input_lines(found, len(files)))


def reading(path: Path, **config: Any) -> InputReading:
    (found,) = understood(path, **config)[0]["readings"]
    return found


def write_table(path: Path) -> None:
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.table({**TABLE, "thumbnail": [b"bytes"]}), path)
        case ".csv":
            path.write_text(",".join(TABLE) + "\n" + ",".join(ROW.values()) + "\n")
        case ".json":
            path.write_text(json.dumps([ROW, ROW][:1]))
        case _:
            path.write_text(json.dumps(ROW) + "\n")


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl", "a.ndjson", "a.json"])
def test_a_table_tells_its_columns_and_its_first_row(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / name)
    found = reading(tmp_path)
    columns = dict(found["columns"])
    assert columns.pop("unread", []) == (["thumbnail"] if name == "a.parquet" else [])
    assert columns == {"url": ["image_url"], "caption": ["TEXT"], "id": ["uid"], "extra": ["licence"]}
    assert found["pictures"] == "to fetch by the URL"
    assert found.get("encoding") == (None if name == "a.parquet" else "utf-8")
    assert (found["files"], found["rows"]) == (1, 1)
    assert found["first_row"] == {
        "url": "http://a/1.jpg?…", "caption": "a dog", "id": "7", "extra": '{"licence": "cc0"}'
    }  # fmt: skip
    lines = dict(understood(tmp_path)[1])
    assert (lines["url"], lines["caption"], lines["extra"]) == ("image_url", "TEXT", "licence")


def test_pictures_in_a_column_in_files_and_in_the_input_are_told(tmp_path: Path) -> None:
    for name in ("column", "paths", "folder", "tar"):
        (tmp_path / name).mkdir()
    pq.write_table(
        pa.table({"img": [{"bytes": PNG, "path": "1.png"}], "text": ["a cat"]}), tmp_path / "column" / "a.parquet"
    )
    assert reading(tmp_path / "column")["pictures"] == "in the column 'img'"
    assert reading(tmp_path / "column")["first_row"]["image"] == f"{len(PNG)} bytes"
    (tmp_path / "paths" / "a.csv").write_text("file_name,caption\n0.png,a cat\n")
    found = reading(tmp_path / "paths", image_roots=(str(tmp_path),))
    assert found["pictures"] == "files that the column 'file_name' names"
    for name, content in (("0.png", PNG), ("0.TXT", b"a cat"), ("1.psd", b""), ("2.txt", b"no picture")):
        (tmp_path / "folder" / name).write_bytes(content)
    found_input, lines = understood(tmp_path / "folder")
    assert found_input["readings"][0]["pictures"] == "in the input"
    assert found_input["not_read"] == {".psd": 1, ".txt": 1}
    assert "1 .psd, 1 .txt; an input=" in dict(lines)["not read"]
    with tarfile.open(tmp_path / "tar" / "a.tar", "w") as tar:
        for name, content in (
            ("0.png", PNG),
            ("0.json", b'{"caption": "a cat", "n": 1}'),
            ("0.mask.png", PNG),
            ("1.txt", b"x"),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    found = reading(tmp_path / "tar")
    assert found["columns"] == {"caption": ["caption"], "extra": ["n"]}
    assert found["tally"] == {".mask.png": 1, "pictures": 1, "without": 1}
    lines = understood(tmp_path / "tar")[1]
    assert ("pictures", "in the input; 1 samples have one, 1 have none") in lines
    assert ("not read", "1 member .mask.png; read.image_member=mask.png reads them") in lines


def test_the_first_row_of_a_metadata_file_beside_its_pictures_is_told_as_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "b/0.png", "text": "a cat"}')
    found = reading(tmp_path)
    assert found["pictures"] == "files that the column 'file_name' names"
    assert found["first_row"] == {
        "caption": "a cat",
        "image": f"{tmp_path}/b/0.png",
        "extra": found["first_row"]["extra"],
    }


def test_files_of_one_kind_are_told_once_and_mixed_ones_apart(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.csv", "d.parquet", "e.parquet"):
        write_table(tmp_path / name)
    (tmp_path / "f.csv").write_text("url,caption\nhttp://f,other columns\n")
    found, lines = understood(tmp_path)
    told = [(part["format"], part["files"], Path(part["file"]).name) for part in found["readings"]]
    assert told == [("jsonl", 2, "a.jsonl"), ("csv", 1, "c.csv"), ("parquet", 2, "d.parquet"), ("csv", 1, "f.csv")]
    assert sum(label == "input" for label, _ in lines) == 4


def test_many_sets_of_columns_are_bounded(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i:02}.csv").write_text(f"url,caption,c{i}\nhttp://a,a,b\n")
    found, lines = understood(tmp_path)
    assert len(found["readings"]) == 8
    assert lines[-1] == ("input", "4 further files with other columns, or without rows")
    names = [f"column {i}" for i in range(5000)]
    (tmp_path / "00.csv").write_text(f"url,caption,{','.join(names)}\nhttp://a,a{',x' * 5000}\n")
    assert len(understood(tmp_path)[0]["readings"][0]["columns"]["extra"]) == 100


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", 'url,caption\nhttp://a,"a" dog\n', "bad_row: text after a closing quote"),
        ("a.csv", "url,caption\nhttp://a\n", "bad_row: 1 fields where the header has 2"),
        ("a.jsonl", '{"url": "", "caption": "a"}\n', "missing_url"),
    ],
)
def test_a_first_row_that_is_dropped_is_told_with_the_reason(
    tmp_path: Path, name: str, content: str, told: str
) -> None:
    (tmp_path / name).write_text(content)
    assert told in reading(tmp_path)["first_row"]["dropped"]


def test_hostile_values_are_cut_and_cannot_control_a_terminal(tmp_path: Path) -> None:
    name, caption = "c\x1b[2J\n\u202e<b>", "x\x1b]0;owned\x07" + "y" * 10_000
    row = {"url": "http://ann:pw@a/1.jpg?token=SECRET", "caption": caption, name: "\ud800", "\ud801": 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    found, lines = understood(tmp_path)
    text = json.dumps(found, ensure_ascii=False).encode().decode()
    assert "SECRET" not in text
    assert "pw" not in text
    assert all(value.isprintable() and len(value) < 2000 for _, value in lines)


@pytest.mark.parametrize(("name", "n_opened"), [("a.parquet", 2), ("a.csv", 1), ("a.jsonl", 1)])
def test_a_text_is_opened_once_and_of_parquet_the_footer_and_the_first_row_of_the_first_file_are_read(
    tmp_path: Path, name: str, n_opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 2000
    table = pa.table({"url": [f"http://a/{i}" for i in range(n)], "caption": ["a dog" * 20] * n})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        rows = table.to_pylist()
        lines = ["url,caption", *(",".join(row.values()) for row in rows)] if name == "a.csv" else map(json.dumps, rows)
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    opened = Counter[str]()
    open_file = streams.open_file

    def counting(path: str, **options: Any) -> Any:
        opened[Path(path).name] += 1
        return open_file(path, **options)

    monkeypatch.setattr(streams, "open_file", counting)
    monkeypatch.setattr(parquet, "open_file", counting)
    (tmp_path / f"b{name[1:]}").write_bytes((tmp_path / name).read_bytes())
    understood(tmp_path)
    assert opened == {name: n_opened, f"b{name[1:]}": 1}


def test_the_record_of_an_earlier_version_tells_nothing() -> None:
    record: JobRecord = {"schema": "1", "settings": {}, "provenance": {}, "batches": []}  # type: ignore[typeddict-item]
    assert understood_input(record) is None


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("value", ["picture", "hash", ""])
def test_the_place_of_pictures_is_that_of_the_first_row(tmp_path: Path, kind: str, value: str) -> None:
    """A column with base64 beside a URL is told as the input, one with other text as what is fetched, an empty one as both."""
    text = {"picture": base64.b64encode(encoded("PNG")).decode(), "hash": "5f3a" * 4, "": ""}[value]
    rows = [{"url": f"http://a/{i}.jpg", "caption": "a hen", "image": text} for i in range(2)]
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif kind == "csv":
            path.write_text("url,caption,image\n" + "".join(",".join(row.values()) + "\n" for row in rows))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ReadConfig()
    readings = Readings(settings)
    cut = cut_files(list_files(str(tmp_path)), 2, None, settings, readings=readings)
    assert [file.reading for file in cut] == [0, 0]
    (found,) = readings.found
    assert found["pictures"].startswith("in the column 'image'" if value == "picture" else "to fetch by the URL")
    assert found["pictures"].endswith(", where the column 'image' has none") == (value == "" and kind != "parquet")
    again = Readings(settings, readings.found)
    assert [file.reading for file in cut_files(list_files(str(tmp_path)), 2, None, settings, readings=again)] == [0, 0]
