"""The queries of an image: sentences of its caption, phrases of its boxes, and parts of the caption.

The rules are those of Hyper3-CLIP's section 4 and of its authors' code (github.com/Hyper3Labs/hyper3-clip, MIT): words
are of ASCII letters and digits, with one hyphen or apostrophe at most. They need no parse.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

CAPTION: Final = -1
"""Parent of the queries that stand directly below the caption."""
SENTENCE_WEIGHT, BOX_WEIGHT, PHRASE_WEIGHT = 1.0, 0.75, 0.5
MAX_SENTENCES, MAX_PHRASES = 5, 30  # fragments of the caption that are tried; boxes and parts that are taken
MIN_CHARACTERS: Final = 3
WINDOW, STEP = 6, 4  # words of a part of a longer piece, and from one to the next
SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|\n+")
JOINTS: Final = re.compile(
    r"[,;:()]|\s+(?:and|with|near|beside|behind|under|above|around|next to)\s+", flags=re.IGNORECASE
)
WORD: Final = re.compile(r"[A-Za-z0-9]+(?:[-'][A-Za-z0-9]+)?")


class Query(NamedTuple):
    """A text, its weight in the loss, and the number of the query above it."""

    text: str
    weight: float
    parent: int = CAPTION


def find_queries(caption: str, phrases: Sequence[str], most: int) -> list[Query]:
    """The first `most` queries of a caption and the phrases of its boxes, without repetitions."""
    found: list[Query] = []
    seen = {plain(caption).casefold()}

    def add(text: str, weight: float, parent: int = CAPTION) -> bool:
        text = plain(text)
        is_new = len(text) >= MIN_CHARACTERS and text.casefold() not in seen
        if is_new:
            seen.add(text.casefold())
            found.append(Query(text, weight, parent))
        return is_new

    sentences = [piece for piece in SENTENCE_END.split(caption) if piece.strip()]
    for sentence in sentences[:MAX_SENTENCES]:
        add(sentence, SENTENCE_WEIGHT)
    first, left = 0 if found else CAPTION, MAX_PHRASES
    for texts, weight, parent in ((phrases, BOX_WEIGHT, CAPTION), (parts_of(caption), PHRASE_WEIGHT, first)):
        for text in texts:
            left -= left > 0 and add(text, weight, parent)
    return found[:most]


def possible_queries(caption: str, phrases: Sequence[str]) -> list[str]:
    """All texts of the queries of a caption with any of these phrases."""
    fragments = (query.text for query in find_queries(caption, (), MAX_SENTENCES + MAX_PHRASES))
    return list(dict.fromkeys([*fragments, *map(plain, phrases)]))


def query_rows(queries: Sequence[Query], row: int, first: int) -> list[tuple[int, int, float]]:
    """Owner, row of the parent and weight of the queries of pair `row`, which begin at row `first` of all."""
    return [(row, q.parent if q.parent == CAPTION else first + q.parent, q.weight) for q in queries]


def plain(text: str) -> str:
    """The text with single spaces."""
    return " ".join(text.split())


def parts_of(caption: str) -> Iterator[str]:
    """The pieces of two to eight words between commas, brackets and words such as "with"; windows of longer ones."""
    for piece in JOINTS.split(caption):
        words = WORD.findall(piece)
        if len(words) <= WINDOW + 2:
            yield from [" ".join(words)] if len(words) > 1 else ()
        else:
            yield from (" ".join(words[start : start + WINDOW]) for start in range(0, len(words) - 1, STEP))
