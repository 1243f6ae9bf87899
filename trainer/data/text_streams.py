"""Streams of further texts of a batch: the labels of a taxonomy, and the queries of an image.

A model names the streams in its terms or `needs`; `STREAMS` says how the texts of a sample become their rows.
"""

import hashlib
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.batch import Stream
from trainer.data.config import DataConfig


class Texts(NamedTuple):
    """The texts of a sample in a batch."""

    caption: str
    phrases: Sequence[str]  # of the boxes that were drawn
    levels: Sequence[str | None]  # labels of a taxonomy by depth; None: not known


class TextRow(NamedTuple):
    """A row of a stream of texts."""

    text: str
    weight: float = 1.0
    parent: int = -1  # number of the row above it, of the same sample; -1: the caption
    depth: int = 0


class TextStream(NamedTuple):
    """Makes a stream of a batch from the texts of its samples.

    With "place" among the facts, equal texts are one row. `column` of cached features holds the texts of the rows of a
    sample, and COLUMN_text their features; without one, only data.texts=tokens gives the stream.
    """

    rows: Callable[[Texts], Sequence[Any]]  # each a TextRow, or a text alone
    facts: tuple[str, ...] = ()  # fields of `Stream`: any of weight, parent, depth, label and place
    column: str = ""

    def stream(
        self,
        samples: Sequence[Texts],
        encode: Callable[[Sequence[tuple[int, str]]], Tensor],
        key: Callable[[str], Hashable] = str,
    ) -> Stream:
        """The stream of a batch. `encode` maps owners and texts to rows; texts with the same `key` are equal."""
        found = [self.rows(sample) for sample in samples]
        starts = accumulate(map(len, found), initial=0)
        rows = [
            (owner, start, row) for owner, (start, part) in enumerate(zip(starts, found, strict=False)) for row in part
        ]
        texts = [(owner, row.text) for owner, _, row in rows]
        facts: dict[str, list[float]] = {
            "weight": [row.weight for _, _, row in rows],
            "parent": [row.parent + start * (row.parent >= 0) for _, start, row in rows],
            "depth": [row.depth for _, _, row in rows],
            "label": [label_number(row.depth, row.text) for _, _, row in rows] if "label" in self.facts else [],
        }
        if "place" in self.facts:
            first: dict[Hashable, tuple[int, str]] = {}
            texts = [first.setdefault(key(text), (owner, text)) for owner, text in texts]
            place = {text: number for number, text in enumerate(first)}
            facts["place"], texts = [place[key(text)] for _, text in texts], [*first.values()]
        kinds = {name: torch.float32 if name == "weight" else torch.int64 for name in self.facts}
        chosen = {name: torch.tensor(facts[name], dtype=kind) for name, kind in kinds.items()}
        chain = max(map(len, found), default=0)
        owners = torch.tensor([owner for owner, _, _ in rows], dtype=torch.int64)
        return Stream(encode(texts), "text", owners, chain=chain, **chosen)  # type: ignore[arg-type]


def label_rows(texts: Texts) -> list[TextRow]:
    """The known labels of a taxonomy."""
    return [TextRow(label, depth=depth) for depth, label in enumerate(texts.levels) if label]


def label_number(depth: int, label: str) -> int:
    """A number of 63 bits that tells labels of any level apart, the same in all processes."""
    return int.from_bytes(hashlib.blake2b(f"{depth} {label}".encode(), digest_size=8).digest()) >> 1


# The queries of an image: sentences of its caption, phrases of its boxes, and parts of the caption.
#
# The rules are those of Hyper3-CLIP's section 4 and of its authors' code (github.com/Hyper3Labs/hyper3-clip, MIT): words
# are of ASCII letters and digits, with one hyphen or apostrophe at most. They need no parse.

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


def query_rows(texts: Texts) -> list[TextRow]:
    """The first queries of a sample, with their weights and those above them."""
    return find_queries(texts.caption, texts.phrases, DataConfig.max_queries)


def find_queries(caption: str, phrases: Sequence[str], most: int) -> list[TextRow]:
    """The first `most` queries of a caption and the phrases of its boxes, without repetitions."""
    found: list[TextRow] = []
    seen = {plain(caption).casefold()}

    def add(text: str, weight: float, parent: int = CAPTION) -> bool:
        text = plain(text)
        is_new = len(text) >= MIN_CHARACTERS and text.casefold() not in seen
        if is_new:
            seen.add(text.casefold())
            found.append(TextRow(text, weight, parent))
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


STREAMS: dict[str, TextStream] = {
    "levels": TextStream(label_rows, ("depth", "label", "place"), "label"),
    "queries": TextStream(query_rows, ("weight", "parent"), "query"),
}
"""Streams of texts by name, in the order in which the text tower takes them."""


def needed_streams(needs: frozenset[str]) -> dict[str, TextStream]:
    """The streams of texts that a model needs, by name."""
    found = {name: kind for name, kind in STREAMS.items() if name in needs}
    return {name: kind._replace(rows=partial(checked_rows, name, kind.rows)) for name, kind in found.items()}


def checked_rows(name: str, rows: Callable[[Texts], Sequence[Any]], texts: Texts) -> list[TextRow]:
    """The rows that the function of a stream gives; a text is a row. Raises UserError for rows of another type.

    An error that the function raises is a bug of its author, who learns the name of the stream with it.
    """
    try:
        given = rows(texts)
        found = [TextRow(row) if isinstance(row, str) else row for row in given]
    except Exception as error:
        error.add_note(f"The function of the stream {name} raised this, or gave no list, for {texts}")
        raise
    if isinstance(given, str) or not all(isinstance(row, TextRow) for row in found):
        raise UserError(
            f"the function of the stream {name} gave {given!r:.80}; let it give a list of TextRow or of texts"
        )
    return found
