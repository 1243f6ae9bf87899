"""The picture of a hierarchy around the root."""

import math
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from trainer.analyses.radial import Item, Link, curve, draw_radial, positions

TEXT = r"a $\frac{ dog"


def items(n_sectors: int) -> list[Item]:
    texts = [Item(TEXT, "phrases", 0.5 + 0.1 * n, n) for n in range(n_sectors)]
    pixels = np.full((20, 20, 3), (250, 10, 20), np.uint8)
    return [*texts, *(Item("", "boxes", 0.9, n, pixels) for n in range(n_sectors))]


@pytest.mark.parametrize("n_sectors", [1, 2, 5])
def test_every_item_is_at_its_distance_and_apart_from_the_others(n_sectors: int) -> None:
    found = positions(items(n_sectors))
    for item, place in zip(items(n_sectors), found, strict=True):
        assert math.hypot(*place) == pytest.approx(item.distance)
    assert min(math.dist(a, b) for i, a in enumerate(found) for b in found[:i]) > 0.15


@pytest.mark.parametrize("angle", [0.0, 0.5, 2.0, 3.0, math.pi, 3.3, 6.0])
def test_a_line_joins_its_ends_and_misses_the_root(angle: float) -> None:
    start, end = (0.8, 0.0), (0.5 * math.cos(angle), 0.5 * math.sin(angle))
    xs, ys = curve(start, end)
    assert (xs[0], ys[0], xs[-1], ys[-1]) == pytest.approx((*start, *end))
    assert np.hypot(xs, ys).min() > 0.1


def test_texts_are_no_formulas_and_images_are_drawn(tmp_path: Path) -> None:
    draw_radial(items(3), [Link(0, 3, True), Link(1, 4, False)], tmp_path / "a.png")
    pixels = np.asarray(PIL.Image.open(tmp_path / "a.png").convert("RGB"))
    assert (pixels == (250, 10, 20)).all(-1).sum() > 3 * 40**2


def test_a_relation_that_holds_has_another_line(tmp_path: Path) -> None:
    for holds in (True, False):
        draw_radial(items(2), [Link(0, 3, holds)], tmp_path / f"{holds}.png")
    first, second = (np.asarray(PIL.Image.open(tmp_path / f"{holds}.png")) for holds in (True, False))
    assert (first != second).any()
