"""Hostile input files: every row is read or dropped by name, in bounded time and memory."""

import gzip
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from pipeline.read.config import ReadConfig
from pipeline.read.text import csv_rows
from tests.hypergrit_common.test_tar import extension, header, pax
from tests.memory import memory_below
from tests.patience import linear_time
from tests.pipeline.read.test_stage import read_all, write_tar

ROW = '{"url": "http://a/%d", "caption": "x"}\n'
MB = 1_000_000


def reasons(rows: list[dict[str, Any]]) -> list[str | None]:
    return [row["reason"] for row in rows]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv.gz"])
def test_a_huge_line_is_dropped_without_reading_it_into_memory(tmp_path: Path, name: str) -> None:
    path, n_bytes = tmp_path / name, 300 * MB
    delimiter = "\t" if "tsv" in name else ","
    rows = [ROW % i for i in range(2)] if "jsonl" in name else [f"http://a/{i}{delimiter}x\n" for i in range(2)]
    with gzip.open(path, "wb", 1) if name.endswith("gz") else path.open("wb") as file:
        file.write(b"" if "jsonl" in name else f"url{delimiter}caption\n".encode())
        file.write(rows[0].encode())
        for _ in range(n_bytes // MB):
            file.write(b"a" * MB)
        file.write(b"\n" + rows[1].encode())
    with memory_below(30 * MB):
        result = read_all(path, 2)
    assert reasons(result) == [None, "bad_row", None]
    assert f"the line has {n_bytes + 1} bytes, more than the limit of 1048576" in result[1]["detail"]


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ({"url": "http://a/" + "b" * 9000, "caption": "x"}, "the URL has 9009 characters, more than the limit of 8192"),
        (
            {"url": "http://a", "caption": "x" * 2 * MB},
            "the caption has 2000000 characters, more than the limit of 1048576",
        ),
        ({"url": "http://a", "caption": "x", "id": "y" * 2 * MB}, "the id has 2000000 characters"),
        ({"url": "http://a", "caption": "x", "z": "y" * 3 * MB}, "the other columns have 3000009 bytes"),
        ({"url": "http://a", "caption": "x", "noun_chunks": [[0, 1, 0, 0, 1, 1, 1]] * 1001}, "1001 boxes, more than"),
    ],
)
def test_a_huge_field_of_a_parquet_file_is_dropped_and_not_stored(
    tmp_path: Path, row: dict[str, Any], detail: str
) -> None:
    good = {name: value[:1] if isinstance(value, list) else "http://a" for name, value in row.items()}
    pq.write_table(pa.Table.from_pylist([good, row]), tmp_path / "a.parquet")
    first, second = read_all(tmp_path / "a.parquet")
    assert (first["reason"], second["reason"]) == (None, "bad_row")
    assert detail in second["detail"]
    assert (second["url"], second["caption_original"], second["extra"]) == (None, None, None)


@pytest.mark.parametrize("rows_per_shard", [1, 3, 1000])
@pytest.mark.parametrize("closing", [None, 20, 70, 300])
def test_an_unbalanced_quote_costs_its_own_row_only(tmp_path: Path, rows_per_shard: int, closing: int | None) -> None:
    path = tmp_path / "a.csv"
    lines = [f"http://a/{i},a dog\n" for i in range(501)]
    lines[5] = 'http://a/5,"a dog\n'
    if closing is not None:  # the next quoted caption seems to end the open one
        lines[closing] = f'http://a/{closing},"a cat, a dog"\n'
    path.write_text("url,caption\n" + "".join(lines))
    rows = read_all(path, rows_per_shard)
    assert len(rows) == 501
    assert [i for i, row in enumerate(rows) if row["reason"]] == [5]
    assert rows[5]["detail"].startswith(f"0/{path.name}, line 7: a quoted field does not end")
    assert rows[6]["url"] == "http://a/6"


def test_an_unbalanced_quote_in_the_last_rows_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('url,caption\nhttp://a/0,x\nhttp://a/1,"open\nhttp://a/2,y\nhttp://a/3,"open')
    assert reasons(read_all(path)) == [None, "bad_row", None, "bad_row"]


def test_quoted_line_breaks_within_the_limit_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    text = "\n".join(["line"] * 100)
    path.write_text(f'url,caption\nhttp://a/0,"{text}"\nhttp://a/1,"a ""quoted"" word"\n\nhttp://a/2,5" pipe\n')
    for rows_per_shard in (1, 4):
        captions = [row["caption_original"] for row in read_all(path, rows_per_shard)]
        assert captions == [text, 'a "quoted" word', '5" pipe']


def test_a_file_of_open_quotes_takes_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('http://a/0,"open\n' * 30_000)
    with linear_time(), path.open("rb") as file:
        assert len(list(csv_rows(file, {"delimiter": ","}, 0, 1, 2, ReadConfig()))) == 30_000


def test_adjacent_samples_with_one_name_are_dropped_but_for_the_last(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    one = write_tar(tmp_path / "one.tar", {"0.jpg": b"first", "0.txt": b"first"}).read_bytes()
    two = write_tar(tmp_path / "two.tar", {"0.jpg": b"other", "0.txt": b"other", "1.jpg": b"x"}).read_bytes()
    path.write_bytes(one[: 4 * 512] + two)
    for rows_per_shard in (1, 10):
        rows = read_all(path, rows_per_shard)
        assert [row["image"] for row in rows] == [None, b"other", b"x"]
        assert "0.jpg is in the tar twice in a row" in rows[0]["detail"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header("0.jpg", size=b"77777777777\0"), "truncated inside 0.jpg"),
        (header("0.jpg", size=b"-0000001000\0"), "no tar header at byte 0"),
        (header("0.jpg", kind=b"S"), "0.jpg is a sparse file"),
        (extension(b"L", b"0.jpg") * 3000 + header("0.jpg"), "extended headers"),
        (extension(b"x", bytes(900_000)) + header("0.jpg"), "damaged pax header"),
        (pax("size", "\N{SUPERSCRIPT TWO}") + header("0.jpg"), "gives the size"),
    ],
)
def test_a_hostile_tar_is_an_error_that_names_file_and_member(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(data + bytes(1024))
    with linear_time():
        with pytest.raises(UserError) as caught:
            read_all(path)
        assert str(path) in str(caught.value)
        assert message in str(caught.value)


def test_a_member_beyond_the_limit_is_dropped_unread(tmp_path: Path) -> None:
    big = 3 << 30
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header("0.jpg", size=b"%011o\0" % big))
        file.seek(big, 1)  # a hole: the file takes no space on the disk
        file.write(header("1.jpg", size=b"%011o\0" % 1) + b"x".ljust(512, b"\0") + bytes(1024))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = read_all(path)
    assert [row["image"] for row in rows] == [None, b"x"]
    assert f"0.jpg has {big} bytes, more than the limit of 64000000" in rows[0]["detail"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
