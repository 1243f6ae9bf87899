"""A picture as the page shows it: boxes in thumbnail pixels, the caption cut at its phrases, and what is known of each."""

import base64
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pipeline.report.samples import Picture, Row

N_COLOURS: Final = 8
"""Colours in style.css, `.c0` to `.c7`; the number beside each says the same without colour."""
TAG_PX: Final = 11.0
"""Half a number's disc with its rim, in pixels of the thumbnail."""


@dataclass(frozen=True)
class Piece:
    """A part of the caption; `number` of the grounded phrase it is, or why it was removed, or neither."""

    text: str
    number: int | None = None
    colour: int | None = None
    removed: str | None = None


@dataclass(frozen=True)
class Box:
    """A kept box in pixels of the thumbnail, and the middle of the disc that carries its number."""

    number: int
    colour: int
    x: float
    y: float
    width: float
    height: float
    tag_x: float
    tag_y: float


@dataclass(frozen=True)
class Phrase:
    """A phrase with a kept box; `scores` are (grounding score, cosine of crop and phrase) of each of its boxes."""

    number: int
    colour: int
    text: str
    expression: str | None
    scores: list[tuple[float, float | None]]


@dataclass(frozen=True)
class Card:
    key: str
    source: str
    width: int
    height: int
    alt: str
    pieces: list[Piece]
    boxes: list[Box]
    phrases: list[Phrase]
    removed: list[tuple[str, str, int]]  # phrase, reason and number of the boxes that a filter removed
    similarity: float | None


def make_card(picture: Picture) -> Card:
    """Everything the template needs, numbers from 1 in the order of the caption."""
    row, caption = picture.row, picture.row["caption"]
    kept = [
        (box, score) for box, score in zip(row["boxes"], row["box_scores"], strict=True) if score["removed"] is None
    ]
    chunks = row["noun_chunks"]
    order = sorted({box["phrase"] for box, _ in kept}, key=lambda chunk: (chunks[chunk]["start"], chunk))
    numbers = {chunk: i + 1 for i, chunk in enumerate(order)}
    phrases = [
        Phrase(
            number=numbers[chunk],
            colour=(numbers[chunk] - 1) % N_COLOURS,
            text=text_of(row, chunks[chunk]),
            expression=expression_of(row, chunk),
            scores=[(box["score"], score["clip_cosine"]) for box, score in kept if box["phrase"] == chunk],
        )
        for chunk in order
    ]
    return Card(
        key=row["key"],
        source="data:image/jpeg;base64," + base64.b64encode(picture.jpeg).decode(),
        width=picture.width,
        height=picture.height,
        alt=f"{caption} Boxes: {', '.join(f'{phrase.number} {phrase.text}' for phrase in phrases)}.",
        pieces=list(cut_caption(row, numbers)),
        boxes=place_boxes([(box, numbers[box["phrase"]]) for box, _ in kept], picture),
        phrases=phrases,
        removed=[(text_of(row, chunks[chunk]), reason, n) for (chunk, reason), n in sorted(removed_boxes(row).items())],
        similarity=row["clip_similarity"],
    )


def removed_boxes(row: Row) -> Counter[tuple[int, str]]:
    """How many boxes of each chunk a filter removed, by reason."""
    pairs = zip(row["boxes"], row["box_scores"], strict=True)
    return Counter((box["phrase"], score["removed"]) for box, score in pairs if score["removed"] is not None)


def place_boxes(boxes: list[tuple[dict[str, Any], int]], picture: Picture) -> list[Box]:
    """Fractions to pixels; a number sits at its box's top left corner, or to the right of the one that is there already."""
    placed: list[Box] = []
    for box, number in sorted(boxes, key=lambda item: item[1]):
        x, y = box["x_min"] * picture.width, box["y_min"] * picture.height
        width, height = box["x_max"] * picture.width - x, box["y_max"] * picture.height - y
        tag_x, tag_y = (min(max(at, TAG_PX), side - TAG_PX) for at, side in ((x, picture.width), (y, picture.height)))
        while any(math.hypot(tag_x - other.tag_x, tag_y - other.tag_y) < 1.6 * TAG_PX for other in placed):
            tag_x += 0.5 * TAG_PX
        rounded = (round(value, 1) for value in (x, y, width, height, tag_x, tag_y))
        placed.append(Box(number, (number - 1) % N_COLOURS, *rounded))
    return placed


def cut_caption(row: Row, numbers: dict[int, int]) -> Iterator[Piece]:
    """The caption in pieces; a chunk that begins inside another one (GRIT's own may) is left unmarked."""
    caption, at = row["caption"], 0
    chunks = sorted(
        enumerate(row["noun_chunks"]), key=lambda item: (item[1]["start"], item[0] not in numbers, -item[1]["end"])
    )
    for i, chunk in chunks:
        number = numbers.get(i)
        if chunk["start"] < at or (number is None and chunk["removed"] is None):
            continue
        if chunk["start"] > at:
            yield Piece(caption[at : chunk["start"]])
        colour = None if number is None else (number - 1) % N_COLOURS
        yield Piece(text_of(row, chunk), number, colour, chunk["removed"])
        at = chunk["end"]
    if at < len(caption):
        yield Piece(caption[at:])


def expression_of(row: Row, chunk: int) -> str | None:
    """The longest referring expression of a chunk, if it says more than the chunk."""
    texts = [text_of(row, expression) for expression in row["ref_exps"] or () if expression["chunk"] == chunk]
    longest = max(texts, key=len, default="")
    return longest if len(longest) > len(text_of(row, row["noun_chunks"][chunk])) else None


def text_of(row: Row, span: dict[str, Any]) -> str:
    return str(row["caption"][span["start"] : span["end"]])
