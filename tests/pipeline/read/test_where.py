"""Selection of rows by a condition: its values, unknown values, hostile texts, errors, and the ledger."""

import contextlib
import datetime
import gzip
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypergrit_common.errors import UserError
from pipeline import load_config
from pipeline.output.write.tar import TarWriter
from pipeline.read.config import ReadConfig
from pipeline.read.where import Where, WhereError
from tests.patience import linear_time
from tests.pipeline.read.test_stage import read_all

RECORD: dict[str, Any] = {
    "p": 0.25, "text": "0.25", "n": 3, "name": "A cat", "none": None, "nan": float("nan"), "tags": ["a", "b"], "yes": True,
    "empty": "", "date": datetime.date(2020, 5, 1), "price": Decimal("1.5"), "raw": b"abc", "odd name": 1, "big": 10**400,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p < 0.5", True),
        ("p < 0.5 and n > 3", False),
        ("p < 0.5 and n >= 3 and n != 4", True),
        ("0.2 < p <= 0.25", True),
        ("0.2 < p < 0.25", False),
        ("text < 0.5 and text == 0.25", True),  # CSV has texts only
        ("not p < 0.5", False),
        ("n * 2 - 1 == 5 and -n < 0 and n / 2 == 1.5 and n % 2 == 1", True),
        ("name == 'A cat' or missing > 1", True),
        ("missing > 1 or p > 1", False),
        ("none < 1 or not none < 1", False),
        ("nan < 1 or not nan < 1 or nan == nan", False),
        ("none is None and missing is None and nan is None and p is not None", True),
        ("name in ['A dog', 'A cat'] and n in (1, 3) and text in (0.25, 1)", True),
        ("name not in ['A dog'] and 'cat' in name and 'dog' not in name and 'a' in tags", True),
        ("none in [1]", False),
        ("len(name) == 5 and len(tags) == 2 and lower(name) == 'a cat'", True),
        ("yes and not (yes and p > 1)", True),
        ("empty < 1 or empty >= 1", False),
        ("date < '2021-01-01' and price > 1.25 and raw == 'abc'", True),
        ("column('odd name') == 1", True),
        ("n / 0 > 1 or n % 0 == 1 or big * 2 > 1", False),
        ("\n  p < 0.5\n", True),
    ],
)
def test_a_condition_has_the_values_of_sql(text: str, expected: bool) -> None:
    where = Where(text)
    assert where(RECORD) is expected
    assert pickle.loads(pickle.dumps(where))(RECORD) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name < 1", "name is 'A cat', not a number"),
        ("tags < 1", "tags is a list, not a number"),
        ("p", "p is '0.25', not true or false"),
        ("p and yes", "p is '0.25', not true or false"),
        ("len(n) > 1", "n is a int, of which len"),
        ("1 in n", "n is a int, not a list or text"),
    ],
)
def test_a_row_with_a_value_of_another_type_is_an_error_that_names_the_column(text: str, message: str) -> None:
    with pytest.raises(WhereError, match=message):
        Where(text)(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "p.real > 0",
        "tags[0] == 'a'",
        "[x for x in tags]",
        "(lambda: 1)()",
        "open('x')",
        "len(tags, 1)",
        "column(name)",
        "column('p', x=1)",
        "p ** p ** p",
        "1 << 100000000",
        "p := 1",
        "f'{p}'",
        "{'a': 1}",
        "*tags",
        "p if yes else n",
        "p // 2 == 0",
        "b'x' == raw",
        "1j < p",
        "... == p",
        "p = 1",
        "p < 1; n",
        "p <",
        "",
        "(" * 5000,
        "not " * 200 + "yes",
        "-" * 5000 + "1 < 2",
        "p < 1 and " * 5000 + "yes",
        "\0",
        "import os",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="where"):
        ReadConfig(where=text)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("pn<>=!andort'\"()[].,*/%+- 01_xclenums"), max_size=40))
def test_any_text_gives_a_truth_value_or_a_named_error(text: str) -> None:
    with contextlib.suppress(UserError, WhereError):
        assert Where(text)(RECORD) in (True, False)


def test_huge_numbers_of_hostile_rows_take_no_time() -> None:
    where = Where("a * a * a * a * a > 1 or a == 1 or a + b < 2")
    row = {"a": 10**400_000, "b": "9" * 400_000}
    with linear_time():
        for _ in range(300):
            where(row)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p is 3", "`is` compares with None only"),
        ("name == 'a dog' and p is 600", "`is` compares with None only"),
        ("name == None", "use `is None`"),
        ("None < p", "use `is None`"),
        ("1 < 2", "names no column"),
        ("True", "names no column"),
        ("'p'", "names no column"),
        ("p and 'a'", "'a'\" is neither true nor false"),
        ("not len(name)", "'len(name)' is neither true nor false"),
        ("p + 1", "'p + 1' is neither true nor false"),
        ("-p", "'-p' is neither true nor false"),
        ("p in 5", "write it in brackets"),
        ("p < [1, 2]", "use `in`"),
    ],
)
def test_a_condition_that_no_row_can_fulfil_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=r"read\.where=") as caught:
        load_config(["input=in.csv", "output=out", f"read.where={json.dumps(text)}"])
    assert message in str(caught.value)
    ReadConfig(where=text)  # a finished output stays readable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("width > height", [0, 2]),  # 1200 x 800, 600 x 1000, 1e3 x 9, x 5
        ("width < height or width <= '999'", [1, 4]),
        ("width == height", [4]),
        ("width != height", [0, 1, 2]),
        ("width == '640'", [4]),
        ("height == '640'", []),
        ("width in ['640'] and height not in ['640']", [4]),
        ("license not in ['cc0']", [1, 4]),
        ("license is None", [2, 3]),
        ("nsfw == False", [0, 1]),
        ("nsfw", [2]),
        ("nsfw != True and not nsfw", [0, 1]),
    ],
)
def test_fields_of_csv_are_compared_as_what_they_hold(tmp_path: Path, text: str, expected: list[int]) -> None:
    rows = ["1200,800,cc0,False", "600,1000,by,false", "1e3,9,,TRUE", ",5,,", "640,640.0,by,"]
    lines = "".join(f"http://a/{i},x,{row}\n" for i, row in enumerate(rows))
    (tmp_path / "a.csv").write_text(f"url,caption,width,height,license,nsfw\n{lines}")
    found = read_all(tmp_path, where=text)
    assert {row["reason"] for row in found} <= {None, "not_selected"}
    assert [i for i, row in enumerate(found) if row["reason"] is None] == expected


def test_long_numbers_in_texts_are_compared_exactly() -> None:
    record = {"a": "123456789012345678901", "b": "123456789012345678902", "c": "1e999999999", "d": "1e999999998"}
    assert not Where("a == b")(record)
    assert Where("a != b")(record)
    Where("c == d or c < d")(record)


@pytest.mark.parametrize("value", ["9007199254740993", 9007199254740993])
def test_texts_and_integers_select_the_same_rows(value: str | int) -> None:
    for right, wrong in (
        ("== 9007199254740993", "== 9007199254740992"),
        ("in [9007199254740993]", "< 9007199254740993"),
    ):
        assert Where(f"id {right}")({"id": value})
        assert not Where(f"id {wrong}")({"id": value})
    assert Where("id == '9007199254740993'")({"id": value})


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl", "a.json"])
def test_other_rows_are_dropped_as_not_selected_and_keep_their_columns(tmp_path: Path, name: str) -> None:
    rows = [{"url": f"http://a/{i}", "caption": "x", "pwatermark": i / 10, "similarity": 0.4} for i in range(10)]
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name, row_group_size=3)
    elif name == "a.csv":
        lines = [",".join(map(str, row.values())) for row in rows]
        (tmp_path / name).write_text("\n".join([",".join(rows[0]), *lines]))
    else:
        text = json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows))
        (tmp_path / name).write_text(text)
    found = read_all(tmp_path, 4, where="pwatermark < 0.5 and similarity > 0.3")
    assert [row["reason"] for row in found] == [None] * 5 + ["not_selected"] * 5
    assert all(row["stage"] == "read" and row["url"] == f"http://a/{i}" for i, row in enumerate(found) if i > 4)
    assert float(json.loads(found[9]["extra"])["pwatermark"]) == 0.9


def test_a_missing_column_is_named_with_the_file_and_the_closest_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("url,caption,pwatermark\nhttp://a,x,0.1\n")
    with pytest.raises(UserError, match=r"a\.csv has no column 'pwatermak'.*did you mean 'pwatermark'\?"):
        read_all(path, where="pwatermak < 0.5")
    with pytest.raises(UserError, match=r"has no column 'zzz'.*it has 'url', 'caption', 'pwatermark'"):
        read_all(path, where="zzz is None")
    (tmp_path / "b.jsonl").write_text(
        '{"url": "http://a", "caption": "x"}\n{"url": "http://b", "caption": "x", "q": 1}\n'
    )
    rows = read_all(tmp_path / "b.jsonl", where="q == 1")  # a key that the first row lacks
    assert [row["reason"] for row in rows] == ["not_selected", None]


def test_a_value_that_cannot_be_compared_costs_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("url,caption,p\nhttp://a,x,0.1\nhttp://b,x,unknown\n")
    rows = read_all(tmp_path, where="p < 0.5")
    assert [row["reason"] for row in rows] == [None, "bad_row"]
    assert "line 3: read.where: p is 'unknown', not a number" in rows[1]["detail"]


def test_text_in_binary_columns_can_be_compared(tmp_path: Path) -> None:
    table = pa.table({"url": ["http://a", "http://b"], "caption": ["x", "y"], "NSFW": [b"UNLIKELY", b"NSFW"]})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = read_all(tmp_path, where="NSFW == 'UNLIKELY'")
    assert [(row["reason"], json.loads(row["extra"])) for row in rows] == [
        (None, {"NSFW": "UNLIKELY"}),
        ("not_selected", {"NSFW": "NSFW"}),
    ]


def write_samples(path: Path, columns: list[dict[str, Any]]) -> None:
    with path.open("wb") as file, TarWriter(file) as tar:
        for i, record in enumerate(columns):
            tar.add_sample(f"{i:06d}", [("jpg", b"i"), ("txt", b"a dog"), ("json", json.dumps(record).encode())])


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_a_tar_whose_samples_lack_a_column_is_an_error_that_names_it(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "a.tar"
    write_samples(path, [{"width": 300}, {"width": 400, "similarity": 0.4}])
    if suffix == ".tar.gz":
        (tmp_path / "a.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    path = path.with_name(f"a{suffix}")
    found = read_all(path, where="similarity > 0.3")  # a sample may lack it
    assert [row["reason"] for row in found] == ["not_selected", None]
    with pytest.raises(UserError, match=r"a\.tar.* has no column 'punsafe', .*it has 'width', 'caption', 'similarity'"):
        read_all(path, where="punsafe < 0.1")
