"""Pictures in one tar and texts in another, and the number of rows of text files."""

import gzip
import json
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.source import read_shard
from tests.hypergrit_common.test_image_types import encoded
from tests.pipeline.read.test_stage import read_all, write_tar

PICTURE = encoded("PNG")
TEXTS = {
    "txt": {f"{i}.txt": b"a bird" for i in range(3)},
    "json": {f"{i}.json": b'{"caption": "a bird", "author": "x"}' for i in range(3)},
    "url": {f"{i}.json": b'{"caption": "a bird", "url": "http://a/1.jpg"}' for i in range(3)},
}


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.parametrize("kind", ["txt", "json"])
@pytest.mark.parametrize(("pictures", "texts"), [("b", "z"), ("z", "b")])
def test_pictures_and_texts_in_tars_of_their_own_are_refused_with_names_and_fix(
    tmp_path: Path, kind: str, pictures: str, texts: str, suffix: str
) -> None:
    write_tar(tmp_path / f"m{suffix}", {"9.png": PICTURE, "9.txt": b"a whole sample"})
    write_tar(tmp_path / f"{pictures}{suffix}", {f"{i}.png": PICTURE for i in range(3)})
    write_tar(tmp_path / f"{texts}{suffix}", TEXTS[kind])
    for path in tmp_path.iterdir() if suffix.endswith(".gz") else ():
        path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(UserError) as error:
        read_all(tmp_path)
    found = str(error.value)
    assert f"{tmp_path / pictures}{suffix} has pictures without texts, the first 0.png" in found
    assert f"{tmp_path / texts}{suffix} texts without pictures, the first 0.{kind};" in found
    assert found.endswith("extract both, and write them with --sort=name")


@pytest.mark.parametrize("kind", ["txt", "json", "url"])
def test_one_of_them_alone_is_an_input_and_so_are_texts_that_name_their_pictures(tmp_path: Path, kind: str) -> None:
    write_tar(tmp_path / "b.tar", TEXTS[kind])
    assert len(read_all(tmp_path)) == 3
    if kind == "url":
        write_tar(tmp_path / "a.tar", {f"{i}.png": PICTURE for i in range(2)})
        assert len(read_all(tmp_path)) == 5


LINE = '{"url": "http://a/%d.jpg", "caption": "%s"}'
ODD_TEXTS = {
    "open.csv": ("url,caption\n" + 'http://a/1.jpg,"never closed\n' + "http://a/2.jpg,x\n" * 149, 150),
    "nul.csv": ("url,caption\nhttp://a/1.jpg,a\0dog\nhttp://a/\0\n\0\n", 3),
    "quoted.csv": ('url,caption\nhttp://a/1.jpg,"two\nlines"\nhttp://a/2.jpg,"x"', 2),
    "windows.csv": ("url,caption\r\nhttp://a/1.jpg,x\r\n\r\nhttp://a/2.jpg,y", 2),
    "cut.jsonl": (LINE % (1, "x") + "\n" + '{"url": "http://a/2.jpg", "caption": "two\nlines"}\n' + LINE % (3, "y"), 4),
    "nul.jsonl": (LINE % (1, "x") + "\n\0\n" + LINE % (2, "\0"), 3),
    "blank.jsonl": ("\n\n" + LINE % (1, "x") + "\n \n" + LINE % (2, "y") + "\n\n", 2),
}


@pytest.mark.parametrize("rows_per_shard", [1, 2, 1000])
@pytest.mark.parametrize("name", ODD_TEXTS)
def test_each_line_of_a_text_is_a_row_at_planning_and_at_reading(
    tmp_path: Path, name: str, rows_per_shard: int
) -> None:
    """That is why texts have no second count: what is no row becomes a bad one, and nothing is between rows."""
    text, n_rows = ODD_TEXTS[name]
    (tmp_path / name).write_bytes(text.encode())
    plans = plan_shards(str(tmp_path / name), rows_per_shard, None, ReadConfig())
    assert sum(plan.n_rows for plan in plans) == n_rows
    rows = [row for plan in plans for row in read_shard(plan, ReadConfig()).to_pylist()]
    assert [row["source_row"] for row in rows] == list(range(n_rows))
    assert {row["reason"] for row in rows} <= {None, "bad_row", "missing_url"}
    assert json.dumps([row["key"] for row in rows]) == json.dumps([f"{i:012d}" for i in range(n_rows)])


def test_a_csv_whose_lines_end_in_a_carriage_return_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"url,caption\rhttp://a/1.jpg,x\rhttp://a/2.jpg,y\r")
    with pytest.raises(UserError, match=r"end lines with \\n or \\r\\n"):
        read_all(tmp_path)
