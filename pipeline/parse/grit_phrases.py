"""GRIT rows that bring their phrases and boxes along: from spans of the caption as given to spans of the cleaned one."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.parse.phrases import Chunk, RefExp, Token, mark_maximal

Span = tuple[int, int]
Given = Mapping[str, Any]  # schemas.rows.GIVEN_BOX


def move_span(original: str, caption: str, start: int, end: int) -> Span | None:
    """Where the text original[start:end] stands in the cleaned caption, or None if that cannot be told.

    Offsets are characters, [start, end). If cleaning left everything up to `end` as it was, the place is the same. Otherwise the
    text is searched: its second occurrence in the original is its second one in the caption. If cleaning made or removed
    occurrences of it, this does not hold, and the answer is None.
    """
    text = original[start:end]
    if not 0 <= start < end <= len(original) or not text.strip():
        return None
    if original[:end] == caption[:end]:
        return start, end
    if original.count(text) != caption.count(text):
        return None
    place = -1
    for _ in range(original.count(text, 0, start + len(text) - 1) + 1):
        place = caption.find(text, place + 1 if place < 0 else place + len(text))
    return (place, place + len(text)) if place >= 0 else None


def given_phrases(
    original: str, caption: str, given_chunks: Sequence[Given], given_ref_exps: Sequence[Given], tokens: Sequence[Token]
) -> tuple[list[Chunk], list[RefExp]]:
    """Noun chunks and referring expressions of a GRIT row, in the cleaned caption.

    GRIT lists the two apart. An expression is a chunk's if it has the same box and score and holds the chunk's span; a chunk without
    one is its own expression. Chunks whose text cleaning changed are left out.
    """
    expressions: dict[Span, Span] = {}
    for chunk in given_chunks:
        span = move_span(original, caption, chunk["start"], chunk["end"])
        if span is None:
            continue
        whole = [
            moved
            for ref_exp in given_ref_exps
            if all(ref_exp[name] == chunk[name] for name in ("x_min", "y_min", "x_max", "y_max", "score"))
            and (moved := move_span(original, caption, ref_exp["start"], ref_exp["end"])) is not None
            and moved[0] <= span[0]
            and span[1] <= moved[1]
        ]
        expressions.setdefault(span, whole[0] if whole else span)
    spans = sorted(expressions)
    chunks: list[Chunk] = [(start, end, _root(tokens, start, end), None) for start, end in spans]
    return chunks, mark_maximal([(number, *expressions[span]) for number, span in enumerate(spans)])


def _root(tokens: Sequence[Token], start: int, end: int) -> int:
    """The last token of the span whose head lies outside it, -1 without one."""
    inside = [i for i, token in enumerate(tokens) if token[0] < end and token[1] > start]
    roots = [i for i in inside if tokens[i][2] == i or tokens[i][2] not in inside]
    return roots[-1] if roots else -1
