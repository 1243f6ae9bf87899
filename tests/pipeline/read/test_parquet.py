"""Parquet files of other writers: text in binary columns, columns of bytes, values that Python cannot represent."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.source import read_shard
from tests.pipeline.read.test_stage import read_all

URLS = [f"http://x.org/{i}.jpg" for i in range(3)]


def test_text_in_a_binary_column_is_read_as_text(tmp_path: Path) -> None:
    table = pa.table(
        {
            "url": pa.array([url.encode() for url in URLS], pa.binary()),
            "TEXT": pa.array(["größe".encode(), b"gr\xf6\xdfe", None], pa.large_binary()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    rows = read_all(tmp_path / "a.parquet")
    assert [(row["url"], row["caption_original"]) for row in rows[::2]] == [(URLS[0], "größe"), (URLS[2], None)]
    assert [row["reason"] for row in rows] == [None, "bad_row", None]


def test_columns_that_contain_bytes_are_not_read(tmp_path: Path) -> None:
    image = {"bytes": b"\xff\xd8" * 999, "path": None}
    pictures = {"plain": [b"x"] * 3, "image": [image] * 3, "images": [[image]] * 3, "coded": pa.array([b"x"] * 3)}
    pictures["coded"] = pictures["coded"].dictionary_encode()
    pq.write_table(pa.table({"url": URLS, "caption": URLS, "n": [1, 2, 3], **pictures}), tmp_path / "a.parquet")
    assert [json.loads(row["extra"]) for row in read_all(tmp_path / "a.parquet")] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_value_that_python_cannot_represent_makes_one_bad_row_if_it_is_needed(tmp_path: Path) -> None:
    dates = pa.array([0, 2**50, None], pa.timestamp("ms"))
    pq.write_table(pa.table({"url": URLS, "caption": URLS, "seen": dates}), tmp_path / "a.parquet")
    rows = read_all(tmp_path / "a.parquet", where="seen is None or seen != ''")
    assert [row["reason"] for row in rows] == [None, "bad_row", None]
    assert "row 1 (from 0): the timestamp[ms] in column 'seen' cannot be read" in rows[1]["detail"]


def test_text_in_latin_1_makes_one_bad_row(tmp_path: Path) -> None:
    latin = pa.array([b"dog", b"caf\xe9", b"cat"]).view(pa.string())
    pq.write_table(pa.table({"url": URLS, "caption": latin}), tmp_path / "a.parquet")
    assert [row["reason"] for row in read_all(tmp_path / "a.parquet")] == [None, "bad_row", None]


def test_a_damaged_page_is_named_with_the_rows_of_the_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"url": f"http://x.org/{i}.jpg", "caption": f"a dog {i**9}"} for i in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=10, use_dictionary=False, compression="snappy")
    column = pq.read_metadata(path).row_group(4).column(1)
    data = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(data)
    first, last = plan_shards(str(path), 50, None, ReadConfig())
    with pytest.raises(UserError, match=rf"cannot read rows 0 to 49 of input file {path}: .*[^.]; replace the file"):
        read_shard(first, ReadConfig())
    assert read_shard(last, ReadConfig()).num_rows == 50


IMAGE = pa.array([b"x"] * 3)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([1, 2, 3]), "int64"),
        (pa.array([[1, 2]] * 3, pa.list_(pa.uint8())), "list<"),
        (pa.StructArray.from_arrays([IMAGE], ["data"]), "struct<data: binary>"),
        (pa.array([{"bytes": "aGk=", "path": "a.jpg"}] * 3), "struct<bytes: string, path: string>"),
    ],
)
def test_an_image_column_that_holds_no_images_is_an_error_with_its_type(
    tmp_path: Path, column: pa.Array, found: str
) -> None:
    pq.write_table(pa.table({"image": column, "caption": URLS}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=rf"the column 'image' has the type {found}.*read.image_column=NAME"):
        plan_shards(str(tmp_path / "a.parquet"), 10, None, ReadConfig())


@pytest.mark.parametrize(
    "column",
    [IMAGE, pa.array(["a.jpg"] * 3), pa.StructArray.from_arrays([IMAGE], ["bytes"]), IMAGE.dictionary_encode(),
     pa.array([{"bytes": None, "path": "a.jpg"}] * 3)],
)  # fmt: skip
def test_image_columns_of_bytes_paths_and_structs_are_accepted(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"image": column, "caption": URLS}), tmp_path / "a.parquet")
    assert len(plan_shards(str(tmp_path / "a.parquet"), 10, None, ReadConfig())) == 1
