"""The page of an evaluation: thumbnails of images and boxes."""

import base64
import io
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from trainer.evaluation.report.page import Details, write_pages


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = PIL.Image.new("RGB", (40, 20), "red")
    pixels.paste("blue", (20, 0, 40, 20))
    pixels.save(tmp_path / "a.png")
    return tmp_path / "a.png"


def picture(url: str) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


@pytest.mark.parametrize("side", [1e6, 1e300, float("inf")])
def test_a_box_far_larger_than_the_image_shows_the_image(image: Path, side: float) -> None:
    assert picture(Details(image.parent).thumbnail(image.name, [-5, -5, side, side])).size == (40, 20)


def test_a_box_shows_its_part_of_the_image(image: Path) -> None:
    shown = picture(Details(image.parent).thumbnail(image.name, [22, 2, 10, 12]))
    assert shown.size == (10, 12)
    red, _, blue = shown.convert("RGB").getpixel((5, 5))  # type: ignore[misc]
    assert red < 20 < 230 < blue


@pytest.mark.parametrize("box", [[100, 100, 5, 5], [1, 2, 3], [None] * 4, "box", [10**400, 0, 1, 1], 7])
def test_a_box_without_a_picture_shows_none(image: Path, box: Any) -> None:
    assert Details(image.parent).thumbnail(image.name, box) == ""


def test_a_picture_is_decoded_once_for_all_pages(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Details(image.parent).thumbnail(image.name)
    monkeypatch.delattr("trainer.evaluation.report.page.decode")
    assert Details(image.parent).thumbnail(image.name) == shown != ""


def test_control_characters_of_results_are_escaped_on_both_pages(tmp_path: Path) -> None:
    content = {"model": {"name": "meru", "hash": "0"}, "error": "no \x1b[2J file", "kind": "missing"}
    write_pages({"meru": {"retrieval": content}}, ["retrieval"], tmp_path, tmp_path, {"clip": "no \x9b file"})
    for name in ("index.html", "summary.md"):
        text = (tmp_path / name).read_text()
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert "x1b" in text
