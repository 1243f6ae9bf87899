"""The read stage: equal rows from every format, stable keys, bad rows as dropped rows, clear errors for bad files."""

import dataclasses
import gzip
import io
import json
import tarfile
import time
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.remote import THREADS, open_file
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.source import read_shard
from pipeline.read.types import Piece, ShardPlan
from tests.pipeline.settings import with_constants

ROWS = [{"url": f"http://x.org/{i}.jpg", "caption": f'caption "{i}", größe 🐕', "n": i} for i in range(10)]


def read_all(input: Path | str, rows_per_shard: int = 4, limit: int | None = None, **config: Any) -> list[dict]:
    settings = with_constants(ReadConfig, **config)
    plans = plan_shards(str(input), rows_per_shard, limit, settings)
    return [row for plan in plans for row in read_shard(plan, settings).to_pylist()]


def write(path: Path, rows: list[dict]) -> Path:
    """Write `rows` in the format that the file name has."""
    quoted = [['"' + str(value).replace('"', '""') + '"' for value in row.values()] for row in rows]
    match path.name.partition(".")[2]:
        case "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case "jsonl.gz":
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
        case "csv":
            path.write_text("\n".join(["url,caption,n", *(",".join(row) for row in quoted)]))
        case "tsv":
            path.write_text("\n".join(["url\tcaption\tn", *("\t".join(row) for row in quoted)]))
    return path


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv"])
@pytest.mark.parametrize("rows_per_shard", [1, 4, 100])
def test_every_format_gives_the_same_rows_at_any_shard_size(tmp_path: Path, name: str, rows_per_shard: int) -> None:
    rows = read_all(write(tmp_path / name, ROWS), rows_per_shard)
    assert [row["key"] for row in rows] == [f"{i:012d}" for i in range(10)]
    assert [(row["url"], row["caption_original"]) for row in rows] == [(row["url"], row["caption"]) for row in ROWS]
    assert [row["source_row"] for row in rows] == list(range(10))
    assert [int(json.loads(row["extra"])["n"]) for row in rows] == list(range(10))


def test_shards_span_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", ROWS[3:])
    write(tmp_path / "a.jsonl", ROWS[:3])
    (tmp_path / "_notes.csv").write_text("no input")
    (tmp_path / "readme.txt").write_text("no input")
    plans = plan_shards(str(tmp_path), 4, None, ReadConfig())
    assert [(plan.index, plan.first_row, plan.n_rows, len(plan.pieces)) for plan in plans] == [
        (0, 0, 4, 2),
        (1, 4, 4, 1),
        (2, 8, 2, 1),
    ]
    assert [row["url"] for row in read_all(tmp_path)] == [row["url"] for row in ROWS]
    assert [row["url"] for row in read_all(tmp_path / "[ab].*")] == [row["url"] for row in ROWS]
    assert [row["url"] for row in read_all(f"file://{tmp_path}")] == [row["url"] for row in ROWS]


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_limit_reads_only_the_first_rows(tmp_path: Path, name: str) -> None:
    assert len(read_all(write(tmp_path / name, ROWS), limit=5)) == 5


@pytest.mark.parametrize("limit", [None, 25])
def test_planning_opens_each_file_once_and_stops_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    n_files = 6 * THREADS
    for i in range(n_files):
        write(tmp_path / f"{i:03}.{('csv', 'jsonl.gz', 'parquet')[i] if i < 3 else 'parquet'}", ROWS)
    opened: list[str] = []

    def open_counted(path: str, **options: Any) -> IO[bytes]:
        opened.append(path)
        is_late = limit is not None and len(opened) > 2 * THREADS
        # Latency of a store: several files are requested before the first response. Late files are slow, so that the
        # limit is reached before all of them are opened, also on a busy machine.
        time.sleep(1 if is_late else 0.005)
        return open_file(path, **options)

    monkeypatch.setattr("pipeline.read.streams.open_file", open_counted)
    plans = plan_shards(str(tmp_path), 7, limit, ReadConfig())
    assert sum(plan.n_rows for plan in plans) == (limit or 10 * n_files)
    assert len(set(opened)) == len(opened)
    assert len(opened) == n_files if limit is None else len(opened) < n_files


def test_the_first_bad_file_is_named_unless_it_is_beyond_the_limit(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ROWS)
    write(tmp_path / "c.parquet", [{"url": "x"}])
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    assert "b.parquet" in error_message(tmp_path)
    assert len(read_all(tmp_path, limit=10)) == 10


def test_a_plan_can_be_restored_from_json(tmp_path: Path) -> None:
    plan = plan_shards(str(write(tmp_path / "a.csv", ROWS)), 4, None, ReadConfig())[1]
    values = json.loads(json.dumps(dataclasses.asdict(plan)))
    again = ShardPlan(**{**values, "pieces": tuple(Piece(**piece) for piece in values["pieces"])})
    assert again == plan
    assert read_shard(again, ReadConfig()).to_pylist()[0]["url"] == ROWS[4]["url"]


def test_malformed_jsonl_rows_are_dropped_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        json.dumps(ROWS[0]),
        "{not json",
        "",
        "[1]",
        '{"url": 5, "caption": "x"}',
        '{"url": "\\ud800"}',
        '{"n": NaN}',
        *('{"url": "http://a", "x": ' + "[" * n + "]" * n + "}" for n in (800, 10**5)),  # nested too deep
        '{"url": "http://a", "caption": "x", "n": ' + "9" * 5000 + "}",  # a number with too many digits
    ]
    path.write_text("\n".join(lines))
    rows = read_all(path, 2)
    assert [row["reason"] for row in rows] == [None, *["bad_row"] * 4, "missing_url", *["bad_row"] * 3]
    assert {row["stage"] for row in rows[1:]} == {"read"}
    assert f"0/{path.name}, line 2: not valid JSON" in rows[1]["detail"]
    assert f"0/{path.name}, line 4" in rows[2]["detail"]


def test_malformed_csv_rows_are_dropped_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"url,caption\nhttp://a/1,ok\nhttp://a/2\nhttp://a/3,\xff\nhttp://a/4," + b"x" * 140_000 + b"\n")
    with path.open("ab") as file:
        file.write(b"http://a/5," + b"x" * 1_100_000 + b"\n")
    rows = read_all(path)
    assert [row["reason"] for row in rows] == [None, "bad_row", "bad_row", None, "bad_row"]
    assert rows[1]["detail"] == f"0/{path.name}, line 3: 1 fields where the header has 2"


def test_a_file_with_two_columns_of_a_name_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("url,caption,note,note\nhttp://a,x,1,2\n")
    table = pa.table([["http://a"], ["x"], [b"1"], [b"2"]], names=["url", "caption", "image", "image"])
    pq.write_table(table, tmp_path / "a.parquet")
    for name, column in (("a.csv", "note"), ("a.parquet", "image")):
        with pytest.raises(UserError, match=rf"{name} has several columns '{column}'; give each a name of its own"):
            read_all(tmp_path / name)
    assert read_all(tmp_path / "a.csv", columns=("url", "caption", "a", "b"))[1]["caption_original"] == "x"


def test_errors_of_a_csv_file_name_the_delimiter_and_the_encoding(tmp_path: Path) -> None:
    (tmp_path / "semicolons.csv").write_text("url;caption\nhttp://a;x\n")
    with pytest.raises(UserError, match=r"has no url column .*; or read\.delimiter=';'"):
        read_all(tmp_path / "semicolons.csv")
    assert read_all(tmp_path / "semicolons.csv", delimiter=";")[0]["caption_original"] == "x"
    (tmp_path / "tabs.csv").write_text("url\tcaption\t\t\nhttp://a\tx\t\t\n")  # with empty names at the end
    assert read_all(tmp_path / "tabs.csv", delimiter=r"\t")[0]["caption_original"] == "x"
    (tmp_path / "wide.csv").write_bytes("url,caption\nhttp://a,x\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"set read\.encoding, such as utf-16"):
        read_all(tmp_path / "wide.csv")
    assert read_all(tmp_path / "wide.csv", encoding="utf-16")[0]["caption_original"] == "x"


def test_a_name_in_lower_case_is_found_first_whatever_the_order(tmp_path: Path) -> None:
    rows = [
        {"url": "http://a", "caption": "lower", "Caption": "x"},
        {"Caption": "x", "url": "http://a", "caption": "lower"},
    ]
    found = read_all(write(tmp_path / "a.jsonl", [*rows, {"url": "http://a", "caption": "y", "id": float("nan")}]))
    assert [row["caption_original"] for row in found] == ["lower", "lower", "y"]
    assert found[2]["id"] is None


def test_columns_are_found_by_known_or_configured_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"URL": "http://a", "TEXT": "x", "SAMPLE_ID": 7, "other": "y"}])
    assert read_all(path)[0] | {"url": "http://a", "caption_original": "x", "id": "7"} == read_all(path)[0]
    assert read_all(path, caption_column="other")[0]["caption_original"] == "y"
    assert read_all(path, id_column="other")[0]["id"] == "y"
    with pytest.raises(UserError, match=r"has no id column \(looked for 'mine'; .*; set read\.id_column=NAME"):
        read_all(path, id_column="mine")


def test_boxes_of_grit_are_read_with_field_names(tmp_path: Path) -> None:
    chunk = [0, 5, 0.1, 0.2, 0.3, 0.4, 0.9]
    good = ROWS[0] | {"noun_chunks": [chunk], "ref_exps": []}
    rows = read_all(write(tmp_path / "a.parquet", [good]))
    box = rows[0]["given_noun_chunks"][0]
    assert (box["start"], box["end"], rows[0]["given_ref_exps"]) == (0, 5, [])
    assert [round(box[name], 4) for name in ("x_min", "y_min", "x_max", "y_max", "score")] == [0.1, 0.2, 0.3, 0.4, 0.9]
    assert read_all(write(tmp_path / "c.jsonl", [good | {"noun_chunks": ""}]))[0]["given_noun_chunks"] is None


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([0, 5, 0.1, 0.2, 0.3, 0.4], "a list of 6 numbers, not 7"),
        ([1], "a list of 1 number, not 7"),
        ({"start": 0, "end": 5}, "{'start': 0, 'end': 5}, not a list of 7 numbers"),
        (7, "7, not a list of 7 numbers"),
        (["a"] * 7, "start is 'a', not a number"),
        ([0, 5, None, 0.2, 0.3, 0.4, 0.9], "x_min is None, not a number"),
        ([0, True, 0.1, 0.2, 0.3, 0.4, 0.9], "end is True, not a number"),
        ([0.5, 5, 0.1, 0.2, 0.3, 0.4, 0.9], "start is 0.5, not a whole number"),
        ([0, float("nan"), 0.1, 0.2, 0.3, 0.4, 0.9], "end is nan, not a whole number"),
        (
            [0, 5, 0.1, float("nan"), 0.3, 0.4, 0.9],
            "fractions of the image, the smaller one first: x_min 0.1, y_min nan",
        ),
        ([0, 5, 0.1, 0.2, 0.3, 0.4, float("nan")], "a score is nan, not within [0, 1]"),
        ([0, 5, 0.1, 0.2, 0.3, 0.4, 10**400], "too large"),
        ([0, 5, 10, 20, 300, 200, 0.9], "edges must be fractions of the image"),
        ([0, 5, 0.6, 0.2, 0.3, 0.4, 0.9], "the smaller one first: x_min 0.6"),
        ([0, 5, 0.1, 0.2, 0.3, 0.4, 95], "a score is 95.0, not within [0, 1]"),
        ([0, 10**12, 0.1, 0.2, 0.3, 0.4, 0.9], "end is 1000000000000, out of range"),
    ],
)
def test_an_invalid_given_box_is_a_bad_row_that_names_it(tmp_path: Path, box: Any, message: str) -> None:
    good = [0, 1.0, 0.1, 0.2, 0.3, 0.4, 0.9]
    bad = [{"noun_chunks": [good, box]}, {"noun_chunks": [good], "ref_exps": json.dumps([good, box])}]
    rows = read_all(
        write(tmp_path / "a.jsonl", [ROWS[0] | bad[0], ROWS[0] | bad[1], ROWS[1] | {"noun_chunks": [good]}])
    )
    assert [row["reason"] for row in rows] == ["bad_row", "bad_row", None]
    for row, column in zip(rows, ("noun_chunks", "ref_exps"), strict=False):
        assert f", line 1: {column} does not hold GRIT's lists of 7 numbers: box 1 (from 0): " in row["detail"].replace(
            "line 2", "line 1"
        )
        assert message in row["detail"]


@pytest.mark.parametrize("value", [5, {"a": 1}, "5", "{}", "[[1,"])
def test_given_boxes_that_are_no_list_are_named(tmp_path: Path, value: Any) -> None:
    (row,) = read_all(write(tmp_path / "a.jsonl", [ROWS[0] | {"noun_chunks": value}]))
    assert row["reason"] == "bad_row"
    assert "noun_chunks does not hold GRIT's lists of 7 numbers: " in row["detail"]


def test_expressions_without_noun_chunks_are_phrases(tmp_path: Path) -> None:
    box = [-9, 5, 0.1, 0.2, 0.3, 0.4, 0.9]
    (row,) = read_all(write(tmp_path / "a.jsonl", [ROWS[0] | {"noun_chunks": [], "ref_exps": [box]}]))
    assert row["given_noun_chunks"] == row["given_ref_exps"]
    assert [(one["start"], one["end"]) for one in row["given_ref_exps"]] == [(-2, 5)]  # outside, not a code


def test_other_columns_are_valid_utf8_even_if_the_json_has_lone_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"url": "http://a", "caption": "x", "\\ud800k": ["\\udc00", "\\ud83d\\ude00"]}\n')
    assert json.loads(read_all(path)[0]["extra"]) == {"?k": ["?", "\N{GRINNING FACE}"]}


@pytest.mark.parametrize("rows_per_shard", [1, 2, 5])
def test_tar_samples_are_grouped_by_name(tmp_path: Path, rows_per_shard: int) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        {
            "d/000.jpg": b"jpeg",
            "d/000.json": json.dumps({"url": "http://a", "caption": "from json", "key": "000"}).encode(),
            "d/000.txt": b"from txt",
            "d/001.png": b"png",
            "d/001.txt": b"only txt",
            "d/002.json": b"{broken",
            "d/003.txt": b"no image",
            "x" * 150 + ".webp": b"long name",
        },
    )
    rows = read_all(path, rows_per_shard)
    assert [row["image"] for row in rows] == [b"jpeg", b"png", None, None, b"long name"]
    assert [row["caption_original"] for row in rows] == ["from json", "only txt", None, "no image", None]
    assert [row["reason"] for row in rows] == [None, None, "bad_row", "missing_url", None]
    assert rows[0]["id"] == "000"


def test_in_a_folder_with_tars_only_these_are_read_and_other_files_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tar(tmp_path / "0.tar", {"0.jpg": b"x", "0.txt": b"y"})
    write(tmp_path / "0.parquet", ROWS)
    assert len(read_all(tmp_path)) == 1
    assert caplog.text == ""
    write(tmp_path / "pairs.parquet", ROWS)
    assert len(read_all(tmp_path)) == 1
    assert "1 file (1 .parquet) of the input are not read, only its tars (1)" in caplog.text
    assert "pairs.parquet" in caplog.text


def error_message(input: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        read_all(input)
    return str(caught.value)


def test_the_errors_of_bad_inputs_name_the_problem(tmp_path: Path) -> None:
    assert "does not exist" in error_message(tmp_path / "none.csv")
    assert "no file of a known format" in error_message(tmp_path)
    assert "holds no row" in error_message(write(tmp_path / "empty.jsonl", []))
    (tmp_path / "picture.xyz").write_text("x")
    assert "no known format" in error_message(tmp_path / "picture.xyz")
    missing = error_message(write(tmp_path / "c.parquet", [{"url": "x", "label": "y"}]))
    assert "no caption column" in missing
    assert "read.caption_column=NAME" in missing
    unknown = error_message("nosuch://x/a.csv")
    assert unknown.startswith("nosuch://x/a.csv: Protocol not known: nosuch; give a path, or a URL such as s3://, ")


def test_the_password_of_an_input_url_is_in_no_message() -> None:
    message = error_message("s3://ann:hunter2@bucket/x.csv")
    assert "hunter2" not in message
    assert "remove them" in message


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.tar"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x1f\x8bgarbage that is none of these formats")
    assert str(path) in error_message(path)


def test_a_file_that_shrank_after_planning_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    plan = plan_shards(str(path), 20, None, ReadConfig())[0]
    write(path, ROWS[:5])
    with pytest.raises(UserError, match="has changed"):
        read_shard(plan, ReadConfig())
