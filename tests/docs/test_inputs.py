"""Annotations that are no pairs are refused with what makes rows of them, such as the code of docs/inputs.md."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from tests.pipeline.read.test_stage import read_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "inputs.md"
ODVG = [
    {
        "filename": "a.jpg", "height": 50, "width": 200,
        "grounding": {
            "caption": "a cat beside two dogs",
            "regions": [
                {"bbox": [20, 10, 60, 50], "phrase": "a cat"},
                {"bbox": [[0, 0, 100, 25], [100, 0, 200, 25]], "phrase": ["two dogs"]},
                {"bbox": [0, 0, 1, 1], "phrase": "a fish"},
            ],
        },
    },
    {"filename": "b.jpg", "height": 9, "width": 9, "grounding": {"caption": "a plain wall", "regions": []}},
    {
        "filename": "b.jpg", "height": 10, "width": 10,
        "grounding": {
            "caption": "a cup and a cup",
            "regions": [{"bbox": [0, 0, 5, 10], "phrase": "a cup", "tokens_positive": [[10, 15]]}],
        },
    },
]  # fmt: skip


def rows_of_odvg(path: Path) -> list[dict[str, Any]]:
    """Return the rows that the function of the page makes, without the lines after it, which write a file."""
    text = PAGE.read_text(encoding="utf-8").partition("### Boxes of ODVG")[2].partition("\n## ")[0]
    code = "\n".join(line[4:] for line in re.findall(r"^(?:    .*)?$", text, re.MULTILINE)).partition("\nwith ")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    return [*found["rows_of_odvg"](path)]


def read(rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(b"a picture")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_all(folder / "rows.jsonl", image_roots=(str(folder),))
    assert [row["reason"] for row in found] == [None] * len(rows)
    return found


def test_annotations_of_coco_name_the_job_that_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "captions_val2017.json"
    path.write_text(json.dumps({"info": {}, "images": [{"id": 5}], "annotations": [{"image_id": 5, "caption": "x"}]}))
    with pytest.raises(
        UserError,
        match=r"no url column .*read\.json_key=NAME; or, if these are captions of COCO, run jobs/pipeline/coco\.sh",
    ):
        read_all(path)


def test_each_phrase_of_odvg_that_the_caption_has_becomes_boxes(tmp_path: Path) -> None:
    path = tmp_path / "flickr.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ODVG))
    with pytest.raises(UserError, match=r"no caption column .* if these are lines of ODVG, make rows"):
        read_all(path, image_roots=(str(tmp_path),))
    first, second, third = read(rows_of_odvg(path), tmp_path)
    assert [[round(edge, 3) for edge in box.values()] for box in first["given_noun_chunks"]] == [
        [0, 5, 0.1, 0.2, 0.3, 1, 1],
        [13, 21, 0, 0, 0.5, 0.5, 1],
        [13, 21, 0.5, 0, 1, 0.5, 1],
        [-1, -1, 0, 0, 0.005, 0.02, 1],
    ]
    assert second["given_noun_chunks"] == []
    assert [list(box.values()) for box in third["given_noun_chunks"]] == [[10, 15, 0, 0, 0.5, 1, 1]]  # the second cup
