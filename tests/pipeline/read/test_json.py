"""Rows of .json files: lists, objects one after the other, lists in objects, columns; damaged and hostile ones."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from pipeline.read.config import ReadConfig
from pipeline.read.listing import list_files
from pipeline.read.plan import cut_files
from tests.patience import linear_time
from tests.pipeline.read.test_stage import ROWS, read_all


def captions(path: Path, rows_per_shard: int = 3, **config: Any) -> list[str]:
    return [row["caption_original"] for row in read_all(path, rows_per_shard, **config)]


EXPECTED = [row["caption"] for row in ROWS]
LAYOUTS = {
    "list": (json.dumps(ROWS, ensure_ascii=False), {}),
    "indented list": (json.dumps(ROWS, indent=2), {}),
    "lines": ("".join(json.dumps(row) + "\n" for row in ROWS), {}),
    "indented objects": ("\n".join(json.dumps(row, indent=1) for row in ROWS), {}),
    "list in an object": (
        json.dumps({"info": {"a": [1, "]"]}, "annotations": ROWS, "z": 1}),
        {"json_key": "annotations"},
    ),
    "columns": (
        json.dumps({"n": 10, **{key: [row[key] for row in ROWS] for key in ROWS[0]}}),
        {"json_layout": "columns"},
    ),
    "byte order mark": ("\ufeff" + json.dumps(ROWS), {}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
def test_every_layout_gives_the_same_rows(
    tmp_path: Path, layout: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.read.text.CHUNK", chunk)  # a value may end anywhere in a block
    text, config = LAYOUTS[layout]
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    rows = read_all(tmp_path, 3, **config)
    assert [(row["url"], row["caption_original"]) for row in rows] == [(row["url"], row["caption"]) for row in ROWS]
    assert [json.loads(row["extra"])["n"] for row in rows] == list(range(10))


def test_quotes_brackets_and_backslashes_within_texts_end_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = ['a "quoted" ]}', "back\\slash \\", '\\"', "[{", "\\\\", "\u2028 \ud83d\ude00"]
    (tmp_path / "a.json").write_text(json.dumps([{"url": "http://a/1", "caption": text} for text in odd]))
    for chunk in range(1, 40):
        monkeypatch.setattr("pipeline.read.text.CHUNK", chunk)
        assert captions(tmp_path) == [json.loads(json.dumps(text)) for text in odd]


def test_malformed_and_long_values_cost_their_rows_only(tmp_path: Path) -> None:
    good = '{"url": "http://a/1", "caption": "x"}'
    bad = ['{"url": nope}', "[1, 2]", "7", '"text"', '{"url": "' + "y" * 5000 + '"}', "x" * 5000]
    (tmp_path / "a.json").write_text("[" + ",\n".join([good, *bad, good]) + "]")
    rows = read_all(tmp_path, 4, max_row_bytes=1000)
    assert [row["reason"] for row in rows] == [None, *["bad_row"] * len(bad), None]
    assert "row 5 (from 0): the value has 5011 bytes, more than the limit of 1000" in rows[5]["detail"]


@pytest.mark.parametrize(
    ("text", "n", "message"),
    [
        ('[{"url": "http://a", "caption": "x"}, {"url": "htt', 1, "truncated inside the value at byte 38"),
        ('[{"url": "http://a", "caption": "x"},', 1, "the list does not end"),
        ('[{"url": "http://a", "caption": "x"}] [', 1, "behind the end of the list"),
        ('{"url": "http://a", "caption": "x"}}', 1, "} at byte 35"),
    ],
)
def test_of_a_damaged_file_the_rows_before_the_damage_are_read(tmp_path: Path, text: str, n: int, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    (file,) = cut_files(list_files(str(tmp_path)), 10, None, ReadConfig())
    assert message in file.damage
    assert len(read_all(tmp_path)) == n


def test_columns_of_different_lengths_are_damage_behind_the_shortest(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"url": ["http://a", "http://b"], "caption": ["x"]}))
    (file,) = cut_files(list_files(str(tmp_path)), 10, None, ReadConfig(json_layout="columns"))
    assert "the list caption has only 1 values" in file.damage
    assert captions(tmp_path, json_layout="columns") == ["x"]


def test_errors_name_the_key_with_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"info": {}, "annotations": ROWS}))
    with pytest.raises(
        UserError, match=r"a\.json has no url column .*it has 'info', 'annotations'.*read\.json_key=NAME"
    ):
        read_all(path)
    with pytest.raises(UserError, match=r"a\.json: it has no list rows \(its keys are info, annotations\)"):
        read_all(path, json_key="rows")
    with pytest.raises(UserError, match=r"its first value is no row .*set read\.json_key=NAME"):
        read_all(path, json_key=None, max_row_bytes=100)
    assert captions(path, json_key="annotations") == EXPECTED


def test_columns_are_refused_in_compressed_files_which_cannot_be_read_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps({"url": ["http://a"], "caption": ["x"]}).encode()))
    with pytest.raises(UserError, match=r"a\.json\.gz: read\.json_layout=columns needs a file .*without compression"):
        read_all(tmp_path, json_layout="columns")


@pytest.mark.parametrize("filler", ["[" * 2_000_000, '"' + "\\" * 2_000_001, "{}," * 100_000, " " * 2_000_000])
def test_a_hostile_file_takes_linear_time(tmp_path: Path, filler: str) -> None:
    (tmp_path / "a.json").write_text('[{"url": "http://a", "caption": "x"},' + filler)
    with linear_time():
        cut_files(list_files(str(tmp_path)), 10**7, None, ReadConfig())


def test_json_files_beside_other_input_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]))
    (tmp_path / "stats.json").write_text("{}")
    assert len(read_all(tmp_path)) == 1
