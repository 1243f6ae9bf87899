"""The page of an evaluation: thumbnails of images and boxes."""

import base64
import io
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from tests.browser import needs_browser
from trainer.evaluation.catalog import TASKS
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
def test_a_box_shows_its_part_of_the_image_or_all_of_it_and_is_decoded_once_for_all_pages(
    image: Path, side: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert picture(Details(image.parent).thumbnail(image.name, [-5, -5, side, side])).size == (40, 20)
    shown = Details(image.parent).thumbnail(image.name, [22, 2, 10, 12])
    red, _, blue = picture(shown).convert("RGB").getpixel((5, 5))  # type: ignore[misc]
    assert picture(shown).size == (10, 12)
    assert red < 20 < 230 < blue
    monkeypatch.delattr("trainer.evaluation.report.page.decode")
    assert Details(image.parent).thumbnail(image.name, [22, 2, 10, 12]) == shown != ""


@pytest.mark.parametrize("box", [[100, 100, 5, 5], [1, 2, 3], [None] * 4, "box", [10**400, 0, 1, 1], 7])
def test_a_box_without_a_picture_shows_none(image: Path, box: Any) -> None:
    assert Details(image.parent).thumbnail(image.name, box) == ""


def test_only_the_name_of_a_file_is_a_picture(image: Path) -> None:
    details = Details(image.parent)
    assert "<img" in details.draw({"image": image.name, "group": "red"})
    drawn = details.draw({"image": {"n": 3, "low_edges": [0.25, 0.5]}, "text": {"n": 4}})
    assert "<img" not in drawn
    assert "{" not in drawn
    assert "<summary>image</summary>" in drawn
    assert "<summary>low edges</summary>0.25; 0.5</details>" in drawn
    assert "<td>number</td><td>3</td>" in drawn


@needs_browser
@pytest.mark.browser
def test_the_page_is_not_wider_than_the_window(image: Path, browser: Any) -> None:
    metrics = {f"set_{number}_with_a_long_name/accuracy": 0.5 for number in range(30)}
    content = {
        "model": {"name": "meru", "hash": "0" * 64}, "metrics": metrics, "chance": {}, "n_used": 9, "rules": {}, "figures": [],
        "checksums": {"a/" * 80: "0" * 64}, "contamination": None, "details": {"mistakes": [{"image": image.name}] * 9},
    }  # fmt: skip
    results = {f"model_{number}": dict.fromkeys(TASKS, content) for number in range(3)}
    write_pages(results, list(TASKS), image.parent, image.parent, {"clip": "x" * 200})
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((image.parent / "index.html").as_uri())
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.eval_on_selector_all("details", "all => all.forEach(d => d.open = false)")
        assert page.evaluate("document.documentElement.scrollHeight") < 1300 * len(TASKS)
        page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_control_characters_of_results_are_escaped_on_both_pages(tmp_path: Path) -> None:
    content = {"model": {"name": "meru", "hash": "0"}, "error": "no \x1b[2J file", "kind": "missing"}
    write_pages({"meru": {"retrieval": content}}, ["retrieval"], tmp_path, tmp_path, {"clip": "no \x9b file"})
    for name in ("index.html", "summary.md"):
        text = (tmp_path / name).read_text()
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert "x1b" in text
