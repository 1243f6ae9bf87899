"""Captions that users labelled for `python -m benchmarks.phrases --captions FILE`."""

import json
import sys
from functools import cache
from pathlib import Path

import pytest

from benchmarks import phrases
from benchmarks.phrases import read_labelled
from hypergrit_common.errors import UserError

DOG = {"start": 0, "end": 9, "head": [6, 9]}
ROW = {"caption": "a red dog on grass", "phrases": [DOG, {"start": 13, "end": 18, "head": [13, 18]}]}


PARSER = cache(phrases.CaptionParser)
"""The parser, which is loaded once."""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(phrases, "CaptionParser", PARSER)
    monkeypatch.setattr(sys, "argv", ["phrases", *map(str, arguments)])
    return phrases.main()


def test_documented_fields_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n")
    assert run(monkeypatch, "--captions", path) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["photo"]["recall"], result["photo"]["precision"]) == (1.0, 1.0)
    assert result["ratio"] >= 1.0


def test_caption_without_a_split_belongs_to_each(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps({**ROW, **more}) for more in ({}, {"split": "dev"}, {"split": "held-out"})))
    assert [len(read_labelled(path, split)) for split in ("dev", "held-out", "all")] == [2, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "own.jsonl has no caption of the split 'held-out'"),
        ("\n\n", "own.jsonl has no caption of the split 'held-out'"),
        (json.dumps({**ROW, "split": "dev"}), "own.jsonl has no caption of the split 'held-out'"),
        ("{", "own.jsonl, line 1: Expecting property name"),
        ("[" * 100_000, "own.jsonl, line 1: "),
        ("5", "own.jsonl, line 1: "),
        (json.dumps(ROW) + "\n{}", "own.jsonl, line 2: 'caption' is missing; a line has the form"),
        ('{"caption": "a dog"}', "own.jsonl, line 1: 'phrases' is missing"),
        ('{"caption": "a dog", "phrases": null}', "own.jsonl, line 1: "),
        (json.dumps({**ROW, "phrases": [{**DOG, "end": 99}]}), "the span from 0 to 99 is not in the caption"),
        (json.dumps({**ROW, "phrases": [{**DOG, "head": [6]}]}), "own.jsonl, line 1: "),
        (json.dumps({**ROW, "phrases": [{**DOG, "end": "9"}]}), "the span from 0 to '9' is not in the caption"),
        (json.dumps({**ROW, "kind": "poem"}), "its kind is not one of photo, alt"),
        ('{"caption": "!", "phrases": []}', "has neither a marked phrase nor one that is kept"),
    ],
)
def test_bad_file_ends_in_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.jsonl").write_text(text)
    assert run(monkeypatch, "--captions", tmp_path / "own.jsonl") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["none.jsonl", ".", "own.jsonl"])
def test_a_missing_or_binary_file_is_reported(name: str, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        read_labelled(tmp_path / name, "all")
