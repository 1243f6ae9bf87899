"""The result of parsing a caption. Character offsets are half open, [start, end)."""

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
