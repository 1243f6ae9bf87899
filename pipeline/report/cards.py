"""The content of a sample image on the page: the drawn boxes, the caption with its phrases marked, and their scores."""

import base64
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pipeline.report.samples import Picture, Row
from pipeline.score.config import clip_score

N_COLOURS: Final = 8
"""Number of colours in style.css, `.c0` to `.c7`. Phrases also have numbers, so colours may repeat."""
MAX_BOXES: Final = 64
"""Kept boxes shown on a card, the best ones; the card states the number of the others."""
MAX_REMOVED: Final = 8
"""Boxes shown on the card of a dropped row, all of which were removed."""
TAG_PX: Final = 11.0
"""Radius of the disc with the number of a box, including its border, in pixels of the thumbnail."""


@dataclass(frozen=True)
class CaptionPart:
    """A part of the caption. `number` and `colour` are set for a grounded phrase, `removed` for a removed one."""

    text: str
    number: int | None = None
    colour: int | None = None
    removed: str | None = None


@dataclass(frozen=True)
class DrawnBox:
    """A kept box in pixels of the thumbnail; (tag_x, tag_y) is the centre of the disc with its number."""

    number: int
    colour: int
    x: float
    y: float
    width: float
    height: float
    tag_x: float
    tag_y: float


@dataclass(frozen=True)
class CardPhrase:
    """A phrase with at least one drawn box. `scores` has (grounding score, CLIPScore of crop and phrase) for each."""

    number: int
    colour: int
    text: str
    expression: str | None
    scores: list[tuple[float, float | None]]


@dataclass(frozen=True)
class Card:
    """One image on the page. `removed` lists (phrase, reason, number of boxes) for removed boxes."""

    key: str
    source: str
    width: int
    height: int
    alt: str
    parts: list[CaptionPart]
    boxes: list[DrawnBox]
    phrases: list[CardPhrase]
    removed: list[tuple[str, str, int]]
    similarity: float | None  # CLIPScore of image and caption
    n_hidden: int  # boxes above MAX_BOXES


def make_card(picture: Picture, is_dropped: bool = False) -> Card:
    """Prepare an image for the template. Phrases are numbered from 1 in the order of the caption.

    The kept boxes of a row are drawn, or, if it was dropped, the best boxes, all of which were removed.
    """
    row, caption = picture.row, picture.row["caption"] or ""
    pairs = list(zip(row["boxes"] or (), row["box_scores"] or (), strict=False))
    found = [(box, score) for box, score in pairs if is_dropped or score["removed"] is None]
    kept = found[: MAX_REMOVED if is_dropped else MAX_BOXES]
    chunks = row["noun_chunks"] or ()
    order = sorted({box["phrase"] for box, _ in kept}, key=lambda chunk: (chunks[chunk]["start"], chunk))
    numbers = {chunk: i + 1 for i, chunk in enumerate(order)}
    phrases = [
        CardPhrase(
            number=numbers[chunk],
            colour=colour_of(numbers[chunk]),
            text=text_of(row, chunks[chunk]),
            expression=expression_of(row, chunk),
            scores=[(box["score"], scaled(score["clip_cosine"])) for box, score in kept if box["phrase"] == chunk],
        )
        for chunk in order
    ]
    return Card(
        key=row["key"],
        source="data:image/jpeg;base64," + base64.b64encode(picture.jpeg).decode(),
        width=picture.width,
        height=picture.height,
        alt=f"{caption} Boxes: {', '.join(f'{phrase.number} {phrase.text}' for phrase in phrases)}.",
        parts=list(split_caption(row, numbers)),
        boxes=draw_boxes([(box, numbers[box["phrase"]]) for box, _ in kept], picture),
        phrases=phrases,
        removed=[(text_of(row, chunks[chunk]), reason, n) for (chunk, reason), n in sorted(removed_boxes(row).items())],
        similarity=scaled(row["clip_similarity"]),
        n_hidden=len(found) - len(kept),
    )


def scaled(cosine: float | None) -> float | None:
    """Return the CLIPScore of a cosine, so that the page shows all scores on the scales of the thresholds."""
    return None if cosine is None else clip_score(cosine)


def colour_of(number: int) -> int:
    """Return the colour (0 to N_COLOURS - 1) of the phrase with this number."""
    return (number - 1) % N_COLOURS


def removed_boxes(row: Row) -> Counter[tuple[int, str]]:
    """Count the removed boxes by noun chunk and reason."""
    pairs = zip(row["boxes"] or (), row["box_scores"] or (), strict=False)
    return Counter((box["phrase"], score["removed"]) for box, score in pairs if score["removed"] is not None)


def draw_boxes(boxes: list[tuple[dict[str, Any], int]], picture: Picture) -> list[DrawnBox]:
    """Convert boxes, each with its phrase's number, to pixels of the thumbnail.

    The disc with the number is at the top left corner of its box, or to the right of a disc that is already there.
    """
    drawn: list[DrawnBox] = []
    for box, number in sorted(boxes, key=lambda item: item[1]):
        x, y = box["x_min"] * picture.width, box["y_min"] * picture.height
        width, height = box["x_max"] * picture.width - x, box["y_max"] * picture.height - y
        tag_x, tag_y = (min(max(at, TAG_PX), side - TAG_PX) for at, side in ((x, picture.width), (y, picture.height)))
        while any(math.hypot(tag_x - other.tag_x, tag_y - other.tag_y) < 1.6 * TAG_PX for other in drawn):
            tag_x += 0.5 * TAG_PX
        rounded = (round(value, 1) for value in (x, y, width, height, tag_x, tag_y))
        drawn.append(DrawnBox(number, colour_of(number), *rounded))
    return drawn


def split_caption(row: Row, numbers: dict[int, int]) -> Iterator[CaptionPart]:
    """Split the caption into phrases and the text between them; `numbers` has the number of each grounded noun chunk.

    A noun chunk that overlaps an earlier one, which only occurs in GRIT input, is not marked.
    """
    caption, position = row["caption"] or "", 0
    chunks = sorted(
        enumerate(row["noun_chunks"] or ()),
        key=lambda item: (item[1]["start"], item[0] not in numbers, -item[1]["end"]),
    )
    for i, chunk in chunks:
        number = numbers.get(i)
        if chunk["start"] < position or (number is None and chunk["removed"] is None):
            continue
        if chunk["start"] > position:
            yield CaptionPart(caption[position : chunk["start"]])
        colour = None if number is None else colour_of(number)
        yield CaptionPart(text_of(row, chunk), number, colour, chunk["removed"])
        position = chunk["end"]
    if position < len(caption):
        yield CaptionPart(caption[position:])


def expression_of(row: Row, chunk: int) -> str | None:
    """Return the longest referring expression of a noun chunk, or None if it is not longer than the chunk."""
    texts = [text_of(row, expression) for expression in row["ref_exps"] or () if expression["chunk"] == chunk]
    longest = max(texts, key=len, default="")
    return longest if len(longest) > len(text_of(row, row["noun_chunks"][chunk])) else None


def text_of(row: Row, span: dict[str, Any]) -> str:
    """Return the text of a noun chunk or referring expression."""
    return str(row["caption"][span["start"] : span["end"]])
