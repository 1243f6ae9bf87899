"""BLIP3-GROUNDING-50M of Salesforce: `read.format=pipeline.read.blip3:Blip3` (jobs/pipeline/blip3.yaml).

A row of its parquet has `url`, `cogvlm_caption` and `captions`: the text of a Python list of [caption, granularity, whether
the alt text is in it]. Captions say where a thing is, behind its name: "a dog (starts at [0.1, 0.2] and extends upto
[0.5, 0.6])" or "a dog <bbox>0.1, 0.2, 0.5, 0.6</bbox>", as fractions of the image, or "a dog (top left of the image)".

The caption of a row is the first of `captions` that has boxes and not the alt text, else the first that has boxes; its
boxes are taken out of the text. Without boxes it is `cogvlm_caption`. `captions` stay in `extra` as `captions_published`.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from pipeline.read.config import ReadConfig
from pipeline.read.parquet import Parquet
from pipeline.read.types import BadRecord, Load, Piece, Record

PLACE: Final = r"[\[(]([^()\[\]<>]*)[\])]"
BOX: Final = re.compile(
    rf"(\()?(?:<bbox>([^<>]*)</bbox>|\bstarts at {PLACE} and extends up ?to {PLACE})(?(1)\))", re.IGNORECASE
)
"""A box in the text of a caption, with its brackets."""
PART: Final = re.compile(r"</?bbox>|\bstarts at [\[(]|\bextends up ?to\b", re.IGNORECASE)
"""A part of a box: one that BOX does not match is damaged."""
NUMBERS: Final = ("two", "three", "four", "five", "six", "several", "some", "many")
FIRST: Final = frozenset({"a", "an", "the", "this", "that", "these", "those", "his", "her", "its", "their", *NUMBERS})
"""Words that begin a phrase."""
WORD: Final = re.compile(r"[\"“‘']?\w+(?:['’-]\w+)*[^\w\s()]*$")
JOINING: Final = re.compile(r"(?:[\s,&]|\b(?:and|or)\b)+$", re.IGNORECASE)
"""What stands between the boxes of one phrase."""
INSIDE: Final = re.compile(
    r"(?!(?:in|on|at|by|with|for|from|to|of|and|or|but|as|is|are|was|were|has|have|near|next|under|over|behind|beside|between"
    r"|into|onto|through|across|around|above|below|against|inside|outside|while|that|which|who|\w*ing)$)[\w'’-]+"
)
"""A word within a phrase, behind its first word."""
MOST: Final = 200
"""Characters in front of a box in which its phrase is looked for."""


class Blip3(Parquet):
    """Rows of BLIP3-GROUNDING, with the boxes in the text of the caption as GRIT's noun_chunks."""

    name = "blip3"

    def loads(
        self, piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, Load | None]]:
        for size, load in super().loads(piece, config, is_wanted):
            yield size, partial(_grounded, load, config.max_boxes) if load else None


def _grounded(load: Load, most: int) -> Record | BadRecord:
    """Return a record with one caption without boxes in its text, and its noun_chunks, at most `most`."""
    record = load()
    if isinstance(record, BadRecord):
        return record
    published = record.get("captions")
    try:
        entries = ast.literal_eval(published) if isinstance(published, str) else published or []
        if not all(isinstance(entry, list | tuple) and isinstance(entry[0], str) for entry in entries):
            raise TypeError("it needs a list of lists, each with a caption in front")
        texts = [text for text, *_ in sorted(entries, key=lambda entry: any(entry[2:3]))]
        found = first_with_boxes([text for text in texts if PART.search(text)], most)
        caption, chunks = found or (record.get("cogvlm_caption"), [])
    except (
        AttributeError,
        IndexError,
        KeyError,
        MemoryError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        return BadRecord(f"no captions of BLIP3-GROUNDING: {type(error).__name__}: {error}"[:300])
    return {**record, "captions": caption, "captions_published": published, "noun_chunks": json.dumps(chunks)}


def first_with_boxes(texts: list[str], most: int) -> tuple[str, list[list[float]]] | None:
    """Return what `take_boxes` finds in the first text without a damaged box; None without texts.

    Raises the ValueError of the first one if all have one.
    """
    errors = list[ValueError]()
    for text in texts:
        try:
            return take_boxes(text, most)
        except ValueError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return None


def take_boxes(text: str, most: int) -> tuple[str, list[list[float]]]:
    """Return a caption without the boxes in its text, and GRIT's noun_chunks, with scores of 1, which are not published.

    The phrase of a box is the word before it, with what follows without a space (the "s" of a plural), from its article,
    pronoun or number on, if at most three words without marks stand between. Raises ValueError for a damaged box,
    and for more than `most`.

    >>> take_boxes("A red hat (starts at [0.1, 0.2] and extends upto [0.3, 0.4]) on dog <bbox>0, 0, 1, 1</bbox>s.", 2)
    ('A red hat on dogs.', [[0, 9, 0.1, 0.2, 0.3, 0.4, 1.0], [13, 17, 0.0, 0.0, 1.0, 1.0, 1.0]])
    """
    end, length, parts, found = 0, 0, list[str](), list[tuple[int, list[str]]]()
    for match in BOX.finditer(text):
        parts.append(text[end : match.start()].rstrip())
        end, length = match.end(), length + len(parts[-1])
        found.append((length, [part for part in match.groups()[1:] if part is not None]))
        if len(found) > most:
            raise ValueError(f"the caption has more than {most} boxes")
    caption = "".join([*parts, text[end:]])
    if damaged := PART.search(caption):
        raise ValueError(f"the box at {caption[damaged.start() :][:60]!r} is damaged")
    chunks = list[list[float]]()
    for place, numbers in found:
        points = [[float(number) for number in re.findall(r"[^\s,\[\]()]+", part)] for part in numbers]
        corners = [corner for point in points for corner in point]
        is_box = {len(point) for point in points} == {4 // len(points)}
        if not is_box or not all(-1 <= corner <= 2 for corner in corners):
            raise ValueError(f"a box is {' '.join(numbers)[:60]!r}; it needs 4 fractions of the image")
        start, stop = _phrase(caption, place)
        chunks.append([start, stop, *corners, 1.0])
    return caption, chunks


def _phrase(caption: str, place: int) -> tuple[int, int]:
    """Return the span of the phrase of a box that stood at `place`. Raises ValueError if no word is in front of it."""
    before = caption[max(0, place - MOST) : place]
    skipped = place - len(before)
    if joined := JOINING.search(before):
        before = before[: joined.start()]
        place = skipped + len(before)
    if (noun := WORD.search(before)) is None:
        raise ValueError(f"no word is in front of the box behind {before[-40:]!r}")
    words = list(re.finditer(r"\S+", before[: noun.start()]))[-4:]
    stop = next((i for i in range(place, len(caption)) if not caption[i].isalnum()), len(caption))
    for word in reversed(words):
        if word[0].lower() in FIRST:
            return skipped + word.start(), stop
        if not INSIDE.fullmatch(word[0].lower()):
            break
    return skipped + noun.start(), stop
