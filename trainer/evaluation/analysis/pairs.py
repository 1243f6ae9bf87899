"""A picture of pairs: each image with its caption, and its boxes with their phrases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from common.images import Image
from common.plots import axes
from trainer.evaluation.analysis.drawing import shorten

IMAGE_IN: Final = 1.35
"""Side of an image in inches."""
TEXT_IN: Final = 0.24
"""Height of the caption above an image, and of the phrases below."""
GAP_IN: Final = 0.15
MIN_COLUMNS: Final = 4
LETTERS_PER_COLUMN: Final = 24


class Pair(NamedTuple):
    """An image with its caption, and its boxes with their phrases. Images are RGB [h w 3]."""

    image: Image
    caption: str
    boxes: Sequence[tuple[Image, str]] = ()


def draw_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """Draw one row per pair: the caption above the image, then the boxes with their phrases below.

    Everything has a fixed place, so that no text moves the images. Images keep their own pixels, without smoothing.
    """
    columns = max(MIN_COLUMNS, 1 + max((len(pair.boxes) for pair in pairs), default=0))
    column, row = IMAGE_IN + GAP_IN, IMAGE_IN + 2 * TEXT_IN
    width, height = GAP_IN + columns * column, len(pairs) * row
    with axes(path, width, height) as first:
        figure = first.figure
        figure.set_layout_engine("none")
        first.remove()
        for number, pair in enumerate(pairs):
            top = height - number * row
            figure.text(
                GAP_IN / width,
                (top - TEXT_IN / 2) / height,
                shorten(pair.caption, columns * LETTERS_PER_COLUMN),
                fontsize=8,
                va="center",
            )
            for place, (image, phrase) in enumerate([(pair.image, ""), *pair.boxes]):
                left, bottom = GAP_IN + place * column, top - TEXT_IN - IMAGE_IN
                panel = figure.add_axes((left / width, bottom / height, IMAGE_IN / width, IMAGE_IN / height))
                panel.imshow(image, interpolation="nearest")
                panel.set_axis_off()
                middle = (left + IMAGE_IN / 2) / width, (bottom - TEXT_IN / 2) / height
                figure.text(*middle, shorten(phrase, LETTERS_PER_COLUMN), fontsize=7, ha="center", va="center")
