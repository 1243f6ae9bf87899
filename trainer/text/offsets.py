"""Where the characters of a text that was cleaned or put in lower case came from. A span is [start, end) in the source."""

import re
from collections.abc import Callable
from difflib import SequenceMatcher

Span = tuple[int, int]
RUN = re.compile(r"\S+")


def source_spans(source: str, clean: Callable[[str], str]) -> tuple[str, list[Span]]:
    """`clean(source)`, and for each of its characters those of `source` it stands for.

    What cleaning left alone maps one to one. What it replaced (mojibake, an entity, a ligature, letter and accent made
    one) maps as a whole, and what it only added belongs to the character before.

    Where cleaning text and cleaning its parts is the same, parts are mapped one by one, so that of two equal words none
    is taken for the other: first what stands between white space, which `clean` makes one space, then characters.
    """
    cleaned = clean(source)
    if source == cleaned:
        return cleaned, one_to_one(source)
    runs = list(RUN.finditer(source))
    parts = [clean(run.group()) for run in runs]
    if " ".join(filter(None, parts)) != cleaned:  # mojibake holds white space too
        return cleaned, difference(source, cleaned)
    spans: list[Span] = []
    for run, part in zip(runs, parts, strict=True):
        if part and spans:
            spans.append((run.start() - 1, run.start()))
        spans += [(run.start() + start, run.start() + end) for start, end in spans_of_run(run.group(), part, clean)]
    return cleaned, spans


def spans_of_run(source: str, cleaned: str, clean: Callable[[str], str]) -> list[Span]:
    if source == cleaned:
        return one_to_one(source)
    letters = [clean(char) for char in source]
    if "".join(letters) == cleaned:
        return [(i, i + 1) for i, letter in enumerate(letters) for _ in letter]
    return difference(source, cleaned)


def one_to_one(source: str) -> list[Span]:
    return [(i, i + 1) for i in range(len(source))]


def difference(source: str, cleaned: str) -> list[Span]:
    """By what both have in common, the longest first."""
    spans: list[Span] = []
    for kind, start, end, first, last in SequenceMatcher(None, source, cleaned, autojunk=False).get_opcodes():
        if kind == "equal":
            spans += [(i, i + 1) for i in range(start, end)]
        else:
            spans += [(start if end > start else max(start - 1, 0), end)] * (last - first)
    return spans


def lower_origins(text: str) -> list[int]:
    """For each character of `text.lower()` the index of its own in `text`: dotted capital I becomes two."""
    return [i for i, char in enumerate(text) for _ in char.lower()]
