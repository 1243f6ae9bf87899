"""Phrases of GRIT rows, whose noun chunks, referring expressions and boxes are given in the input.

The given spans count characters of the original caption. Cleaning may change the caption, so the spans are moved to the
cleaned one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from pipeline.parse.phrases import mark_maximal
from pipeline.parse.types import Chunk, RefExp, Token

Span = tuple[int, int]
Box = tuple[float, float, float, float, float]
"""x_min, y_min, x_max, y_max and score."""
GivenBox = Mapping[str, Any]
"""A box of the input (schemas.rows.GIVEN_BOX)."""


@dataclass(frozen=True, kw_only=True)
class GivenPhrases:
    """The phrases of a GRIT row, in the cleaned caption."""

    chunks: list[Chunk]
    ref_exps: list[RefExp]
    given_chunks: list[int]
    """Index in `chunks` of each given box, -1 if its phrase was not found."""


def move_span(original: str, caption: str, start: int, end: int) -> Span | None:
    """Return the span of the text `original[start:end]` in the cleaned caption, or None if it cannot be determined.

    Spans count characters, [start, end). If cleaning changed nothing before `end`, the span stays the same. Otherwise
    the text is searched, and its n-th occurrence in the original corresponds to its n-th occurrence in the caption.
    The result is None if cleaning added or removed occurrences.
    """
    text = original[start:end]
    if not 0 <= start < end <= len(original) or not text.strip():
        return None
    if original[:end] == caption[:end]:
        return start, end
    if original.count(text) != caption.count(text):
        return None
    found = -1
    for _ in range(original.count(text, 0, start + len(text) - 1) + 1):
        found = caption.find(text, found + 1 if found < 0 else found + len(text))
    return (found, found + len(text)) if found >= 0 else None


def given_phrases(
    original: str,
    caption: str,
    given_chunks: Sequence[GivenBox],
    given_ref_exps: Sequence[GivenBox],
    tokens: Sequence[Token],
) -> GivenPhrases:
    """Return the noun chunks and referring expressions of a GRIT row, and the noun chunk of each given box.

    GRIT lists noun chunks and expressions separately. An expression belongs to a chunk if it has the same box and
    score and contains the chunk; a chunk without one is its own expression. Chunks that are not found in the cleaned
    caption are skipped.
    """
    moved = cache(partial(move_span, original, caption))
    ref_exps: dict[Box, list[Span]] = {}  # by box and score, in their order
    for given in given_ref_exps:
        if (found := moved(given["start"], given["end"])) is not None:
            ref_exps.setdefault(_box(given), []).append(found)
    expressions: dict[Span, Span] = {}
    chunk_spans: list[Span | None] = []
    for given in given_chunks:
        span = moved(given["start"], given["end"])
        chunk_spans.append(span)
        if span is not None and span not in expressions:
            candidates = dict.fromkeys(ref_exps.get(_box(given), ()))
            expressions[span] = next((e for e in candidates if e[0] <= span[0] and span[1] <= e[1]), span)
    spans = sorted(expressions)
    index = {span: number for number, span in enumerate(spans)}
    return GivenPhrases(
        chunks=[Chunk(start, end, _root(tokens, start, end), None) for start, end in spans],
        ref_exps=mark_maximal([(number, *expressions[span]) for number, span in enumerate(spans)]),
        given_chunks=[-1 if span is None else index[span] for span in chunk_spans],
    )


def _box(given: GivenBox) -> Box:
    x_min, y_min, x_max, y_max, score = (given[name] for name in ("x_min", "y_min", "x_max", "y_max", "score"))
    return x_min, y_min, x_max, y_max, score


def _root(tokens: Sequence[Token], start: int, end: int) -> int:
    """Return the last token of the span whose head lies outside it, or -1 if no token overlaps the span."""
    first = bisect_right(tokens, start, key=lambda token: token.end)
    last = bisect_left(tokens, end, key=lambda token: token.start)
    outside = (i for i in reversed(range(first, last)) if tokens[i].head == i or not first <= tokens[i].head < last)
    return next(outside, -1)
