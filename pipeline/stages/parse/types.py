"""The result of parsing a caption. Character offsets are half open, [start, end)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class Token(NamedTuple):
    """A token of a caption (schemas.rows.TOKEN)."""

    start: int  # first character
    end: int  # one past the last character
    head: int  # index of the head token
    dep: str  # dependency label
    pos: str  # universal part of speech
    tag: str  # fine-grained tag
    lemma: str  # base form


class Chunk(NamedTuple):
    """A noun chunk of a caption (schemas.rows.CHUNK)."""

    start: int
    end: int
    root: int
    removed: str | None


class RefExp(NamedTuple):
    """The referring expression of a noun chunk (schemas.rows.REF_EXP)."""

    chunk: int
    start: int
    end: int
    is_maximal: bool


def maximal(spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return False for each span [start, end) that lies inside another; of several equal ones, the first is maximal."""
    # Sorted like this, a span lies inside an earlier one exactly if one of them ends at its end or behind it.
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1], i))
    found, furthest = [False] * len(spans), -1
    for i in order:
        found[i] = spans[i][1] > furthest
        furthest = max(furthest, spans[i][1])
    return found


@dataclass(frozen=True, kw_only=True)
class CaptionParse:
    """The parse of one caption."""

    tokens: list[Token]
    """In the order of the caption."""
    chunks: list[Chunk]
    """In the order of the caption, removed ones included."""
    ref_exps: list[RefExp]
    """One of each chunk that is not removed."""
    given_chunks: list[int] | None = None
    """Index in `chunks` of each given box, -1 without one; None if the row has no given boxes."""


NO_PARSE: Final = CaptionParse(tokens=[], chunks=[], ref_exps=[])
"""The result for a caption that is not parsed."""
