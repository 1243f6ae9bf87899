"""Map the characters of a cleaned or lower-cased text back to the original. A span is [start, end) in the original."""

import re
from collections.abc import Callable
from difflib import SequenceMatcher

Span = tuple[int, int]
RUN = re.compile(r"\S+")


def source_spans(source: str, clean: Callable[[str], str]) -> tuple[str, list[Span]]:
    """Return `clean(source)`, and for each of its characters the span of `source` that it represents.

    Unchanged characters map one to one. Replaced ones (mojibake, an entity, a ligature, a letter with a combining
    accent) map to the whole span that was replaced. Inserted ones map to the character before them.

    Where cleaning the parts of a text gives the same result as cleaning all of it, each part is mapped separately, so
    that a word is never matched with an equal word elsewhere: first the runs between white space, which `clean`
    collapses to one space, then single characters.
    """
    cleaned = clean(source)
    if source == cleaned:
        return cleaned, identity_spans(source)
    runs = list(RUN.finditer(source))
    parts = [clean(run.group()) for run in runs]
    if " ".join(filter(None, parts)) != cleaned:  # mojibake may contain white space
        return cleaned, diff_spans(source, cleaned)
    spans: list[Span] = []
    for run, part in zip(runs, parts, strict=True):
        if part and spans:
            spans.append((run.start() - 1, run.start()))
        spans += [(run.start() + start, run.start() + end) for start, end in run_spans(run.group(), part, clean)]
    return cleaned, spans


def run_spans(source: str, cleaned: str, clean: Callable[[str], str]) -> list[Span]:
    """Return the spans of a run without white space, character by character where that is possible."""
    if source == cleaned:
        return identity_spans(source)
    letters = [clean(char) for char in source]
    if "".join(letters) == cleaned:
        return [(i, i + 1) for i, letter in enumerate(letters) for _ in letter]
    return diff_spans(source, cleaned)


def identity_spans(source: str) -> list[Span]:
    """Return the span of each character of a text that cleaning does not change."""
    return [(i, i + 1) for i in range(len(source))]


def diff_spans(source: str, cleaned: str) -> list[Span]:
    """Return the spans by the longest matching blocks of both texts (difflib)."""
    spans: list[Span] = []
    for kind, start, end, first, last in SequenceMatcher(None, source, cleaned, autojunk=False).get_opcodes():
        if kind == "equal":
            spans += [(i, i + 1) for i in range(start, end)]
        else:
            spans += [(start if end > start else max(start - 1, 0), end)] * (last - first)
    return spans


def lowercase_origins(text: str) -> list[int]:
    """Return the index in `text` of the source of each character of `text.lower()`. A dotted capital I becomes two."""
    return [i for i, char in enumerate(text) for _ in char.lower()]
