"""Where the characters of a text that was cleaned or put in lower case came from. A span is [start, end) in the source."""

from difflib import SequenceMatcher

Span = tuple[int, int]


def source_spans(source: str, cleaned: str) -> list[Span]:
    """For each character of `cleaned` the characters of `source` it stands for.

    What cleaning left alone maps one to one. What it replaced (mojibake, an entity, a ligature, letter and accent made
    one) maps as a whole, and what it only added belongs to the character before.
    """
    if source == cleaned:
        return [(i, i + 1) for i in range(len(source))]
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
