"""Known boxes in COCO's form and as phrases, and the messages for bad files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from pipeline.explore.quality.boxes import FoundRow
from pipeline.explore.quality.known import Known, contains, read_known

COCO = {
    "images": [{"id": 7, "file_name": "dir/dog.jpg", "width": 200, "height": 100}],
    "annotations": [
        {"image_id": 7, "category_id": 1, "bbox": [20, 10, 100, 50]},
        {"image_id": 7, "category_id": 2, "bbox": [0, 0, 200, 100], "iscrowd": 1},
    ],
    "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "person"}],
}


def coco_box(bbox: Any, category_id: Any = 1) -> dict[str, Any]:
    return {**COCO, "annotations": [{"image_id": 7, "category_id": category_id, "bbox": bbox}]}


def one_phrase(start: float, end: float, box: Any = (0, 0, 1, 1)) -> dict[str, Any]:
    return {"7": {"caption": "a dog", "phrases": [{"start": start, "end": end, "boxes": [box]}]}}


def row(id_: str | None = None, url: str | None = None, caption: str = "a dog") -> FoundRow:
    return FoundRow(key="000000000000", id=id_, url=url, caption=caption, boxes=())


def write(folder: Path, data: Any) -> Path:
    path = folder / "known.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def coco_images(*images: tuple[int | str, str]) -> dict[str, Any]:
    """COCO's JSON of images with (id, file name); the n-th one has a box of n tenths of its width."""
    return {
        "images": [{"id": id_, "file_name": file, "width": 10, "height": 10} for id_, file in images],
        "annotations": [
            {"image_id": id_, "category_id": 1, "bbox": [0, 0, number + 1, 1]} for number, (id_, _) in enumerate(images)
        ],
        "categories": [{"id": 1, "name": "dog"}],
    }


def image_of(known: Known, found: FoundRow) -> int | None:
    """Return the index of the image of a row in `coco_images`."""
    objects = known.of(found)
    return None if objects is None else round(objects[0].corners[2] * 10) - 1


def test_row_id_precedes_file_name_and_stem(tmp_path: Path) -> None:
    known = read_known(write(tmp_path, coco_images((12, "5.jpg"), (5, "dogs/12.jpg"), (7, "12"))))
    assert [image_of(known, row(name)) for name in ("12", "5", "7", "5.jpg")] == [0, 1, 2, 0]
    assert image_of(known, row(None, "http://x.org/12.jpg")) == 1
    assert image_of(known, row("12", "http://x.org/12.jpg")) == 0
    assert image_of(known, row(None, "http://x.org/12.png")) is None  # "12" is a file name and the stem of another


def test_name_of_several_images_finds_none(tmp_path: Path) -> None:
    images = coco_images((1, "a/dog.jpg"), (2, "b/dog.jpg"), (3, "cat.jpg"), (4, "cat.png"))
    known, files = read_known(write(tmp_path, images)), ("dog.jpg", "cat.jpg", "cat.png", "cat.gif")
    assert [image_of(known, row(None, f"http://x.org/{file}")) for file in files] == [None, 2, 3, None]
    assert [image_of(known, row(str(id_))) for id_ in (1, 2, 3, 4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("second", [1, "1"])
def test_id_of_two_images_is_an_error(tmp_path: Path, second: int | str) -> None:
    with pytest.raises(UserError, match=r"known.json: images\[1\] has the id '?1'? of another image"):
        read_known(write(tmp_path, coco_images((1, "a.jpg"), (second, "b.jpg"))))


@pytest.mark.parametrize(
    "found", [row("7"), row("dog"), row(None, "http://x.org/a/dog.jpg?q=1"), row("x", "s3://b/dog")]
)
def test_coco_images_are_found_by_id_or_file_name(tmp_path: Path, found: FoundRow) -> None:
    known = read_known(write(tmp_path, COCO)).of(found)
    assert known is not None
    assert known[0].corners == (0.1, 0.1, 0.6, 0.6)
    assert (known[0].name, known[0].is_crowd) == ("dog", False)
    assert (known[1].name, known[1].is_crowd) == ("person", True)


def test_names_are_ignored_for_any_phrase(tmp_path: Path) -> None:
    known = read_known(write(tmp_path, COCO), any_phrase=True).of(row("7"))
    assert known is not None
    assert known[0].name == ""


@pytest.mark.parametrize(
    ("phrase", "name", "is_in"),
    [
        ("two big Dogs", "dog", True),
        ("a hot-dog", "hot dog", True),
        ("three buses", "bus", True),
        ("some cherries", "cherry", True),
        ("WOMEN AND CHILDREN", "child", True),
        ("two knives", "knife", True),
        ("a knife", "knives", True),
        ("two wine glasses", "wine glass", True),
        ("a sunny day", "sun", False),
        ("a dogma", "dog", False),
        ("a cat", "dog", False),
    ],
)
def test_names_are_whole_words_in_singular_or_plural(phrase: str, name: str, is_in: bool) -> None:
    assert contains(phrase, name) is is_in


def test_caption_of_another_output_is_reported(tmp_path: Path) -> None:
    data = {"7": {"caption": "a cat", "phrases": [{"start": 0, "end": 5, "boxes": [[0, 0, 1, 1]]}]}}
    with pytest.raises(UserError, match="the caption of image '7' is 'a cat', but the output has 'a dog'"):
        read_known(write(tmp_path, data)).of(row("7"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ([1], "holds no known boxes"),
        ({}, "holds no known boxes"),
        ({**COCO, "images": [{"id": 7}]}, r"images\[0\] needs id, width and height"),
        ({**COCO, "images": [{"id": 7, "width": 0, "height": 3}]}, r"images\[0\] needs id, width and height"),
        ({**COCO, "annotations": [{"image_id": 8, "bbox": [0, 0, 1, 1]}]}, r"annotations\[0\] needs the image_id"),
        ({**COCO, "annotations": [{"image_id": 7, "bbox": [0, 0, 1]}]}, r"annotations\[0\] needs the image_id"),
        ({**COCO, "categories": []}, r"annotations\[0\] has no category"),
        ({"7": {"phrases": [{"start": 0, "end": 5, "boxes": [[0, 0, 1]]}]}}, "row '7' needs phrases"),
        ({"7": {"phrases": [{"boxes": []}]}}, "row '7' needs phrases"),
        ({**COCO, "annotations": None}, "`annotations` is no list"),
        ({**COCO, "categories": None}, "`categories` is no list"),
        ({**COCO, "images": 5}, "`images` is no list"),
        ({**COCO, "categories": [{"id": [1], "name": "dog"}]}, r"categories\[0\] needs an id and a name"),
        ({**COCO, "categories": [{"id": 1, "name": None}]}, r"categories\[0\] needs an id and a name"),
        ({**COCO, "images": [{"id": [7], "width": 9, "height": 9}]}, r"images\[0\] needs id, width and height"),
        (coco_box([0, 0, 1, 1], category_id=[1]), r"annotations\[0\] has no category"),
        (coco_box([0, 0, math.nan, 1]), r"annotations\[0\] needs the image_id"),
        (coco_box([0, math.inf, 1, 1]), r"annotations\[0\] needs the image_id"),
        (coco_box([5, 5, -1, 1]), r"annotations\[0\] needs the image_id"),
        (coco_box("1234"), r"annotations\[0\] needs the image_id"),
        (one_phrase(math.inf, 60), "row '7' needs phrases"),
        (one_phrase(50, 5), "row '7' needs phrases .*the span from 50 to 5"),
        (one_phrase(0, 50), "row '7' needs phrases .*the span from 0 to 50"),
        (one_phrase(0, 5, [0, 0, math.nan, 1]), "row '7' needs phrases"),
        (one_phrase(0, 5, [0.5, 0, 0.1, 1]), "row '7' needs phrases"),
        (one_phrase(0, 5, "0011"), "row '7' needs phrases"),
    ],
)
def test_bad_file_is_reported_in_one_line(tmp_path: Path, data: Any, text: str) -> None:
    with pytest.raises(UserError, match=text) as error:
        read_known(write(tmp_path, data))
    assert "\n" not in str(error.value)
    assert "known.json" in str(error.value)
