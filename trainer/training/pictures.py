"""Pictures of a run for TensorBoard and Weights & Biases: pairs as the model sees them, and its evaluation.

Captions are untrusted: they are shortened, and matplotlib reads no formulas in them.

Shapes: b pairs, m boxes, s side of an image, h height and w width of a picture, c classes.
"""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.images import Image
from hypergrit_common.plots import axes
from hypergrit_common.text import printable
from trainer.batch import Batch
from trainer.evaluation.held_out.evaluate import Confusion, Details
from trainer.evaluation.metrics.spaces import NAMES
from trainer.evaluation.plots import draw_confusion, draw_histograms, shorten
from trainer.metrics.writers import Pictures
from trainer.text.base import TextTokenizer

# A picture of pairs: each image with its caption, and its boxes with their phrases.

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


MAX_BOXES: Final = 4
"""Boxes of a pair that are drawn."""
MAX_CLASSES: Final = 40
"""Classes of a table of confusions that are drawn: those with the most mistakes."""
OTHERS: Final = "(other classes)"


def pair_picture(batch: Batch, tokenizer: TextTokenizer, limit: int) -> Image:
    """Draw the first `limit` pairs of a batch: crops of image and boxes, with caption and phrases decoded from tokens."""
    n = min(limit, len(batch.images))
    owner = owners(batch)
    pairs = []
    for row in range(n):
        mine = [box for box, pair in enumerate(owner) if pair == row][:MAX_BOXES]
        images, ids = batch.box_images, batch.box_token_ids
        boxes = [] if images is None or ids is None else [(rgb(images[i]), decode(tokenizer, ids[i])) for i in mine]
        pairs.append(Pair(rgb(batch.images[row]), decode(tokenizer, batch.token_ids[row]), boxes))
    return drawn(lambda path: draw_pairs(pairs, path))


def owners(batch: Batch) -> list[int]:
    """The pair [m] of each box."""
    if batch.box_owner is not None:
        found: list[int] = batch.box_owner.tolist()
        return found
    return list(range(0 if batch.box_images is None else len(batch.box_images)))


def rgb(image: Tensor) -> Image:
    """An image [3 s s], uint8 or float in [0, 1], as RGB [s s 3]."""
    pixels = image.cpu()
    if pixels.is_floating_point():
        pixels = (255 * pixels.float()).round().clamp(0, 255).byte()
    return pixels.permute(1, 2, 0).contiguous().numpy()


def decode(tokenizer: TextTokenizer, ids: Tensor) -> str:
    """The text of token ids, without control characters."""
    return printable(tokenizer.decode(ids.tolist()))


def evaluation_pictures(details: Details) -> Pictures:
    """The distances from the root, as a picture and as one distribution per stream, and the confusions of each folder."""
    # A model that diverges has distances that are not finite.
    finite = {name: values[values.isfinite()].numpy() for name, values in details.distances.items()}
    distances = {name: values for name, values in finite.items() if len(values)}
    images = {f"confusion/{printable(name)}": confusion_picture(found) for name, found in details.confusions.items()}
    if distances:
        groups = {NAMES[name]: values for name, values in distances.items()}
        images["distances/all"] = drawn(lambda path: draw_histograms(groups, details.quantity, path))
    return Pictures(images=images, histograms={f"distances/{name}": values for name, values in distances.items()})


def confusion_picture(found: Confusion) -> Image:
    """Draw the confusions of a folder. Beyond `MAX_CLASSES`, the classes with the fewest mistakes are counted as one."""
    table, names = found.table.numpy(), [printable(name) for name in found.names]
    if len(names) > MAX_CLASSES:
        mistakes = table.sum(0) + table.sum(1) - 2 * table.diagonal()
        kept = np.sort(np.argsort(-mistakes, kind="stable")[: MAX_CLASSES - 1])
        table, names = merged(table, kept), [*(names[i] for i in kept), OTHERS]
    return drawn(lambda path: draw_confusion(table.tolist(), names, path))


def merged(table: NDArray[np.int64], kept: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """A table [c c] with the rows and columns `kept`, and with one of all others, the last."""
    place = np.full(len(table), len(kept))
    place[kept] = np.arange(len(kept))
    onto = np.eye(len(kept) + 1, dtype=table.dtype)[place]  # [c len(kept) + 1]
    return onto.T @ table @ onto


def drawn(draw: Callable[[Path], None]) -> Image:
    """The pixels [h w 3] of a picture that `draw` writes to a file."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # captions in any script; they are drawn as boxes
        draw(Path(folder, "picture.png"))
        with PIL.Image.open(Path(folder, "picture.png")) as picture:
            return np.asarray(picture.convert("RGB"))
