"""Phrases and expressions of web texts, compared with those that people marked (tests/data/web_texts.md has the convention).

A kept phrase is right if its span is the marked one or an alternative; optional spans count neither way. An expression is
compared only if its phrase is right, and if it or the marked one is longer than the phrase.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pipeline.stages.parse.recipe.labels import accepted
from pipeline.stages.parse.types import CaptionParse

SHARES: Final = {
    "wrong": ("wrong phrase", "judged"),
    "missing": ("missing phrase", "marked"),
    "expressions": ("wrong expression", "expanded"),
}
"""Share -> names of its two counts."""


class Fault(NamedTuple):
    """A difference between what was marked and what was found."""

    kind: str
    found: str
    marked: str


def judge(row: Mapping[str, Any], parse: CaptionParse) -> tuple[Counter[str], list[Fault]]:
    """Return the counts and the faults of a text."""
    text, counts, faults = row["text"], Counter[str](marked=len(row["phrases"])), list[Fault]()
    expressions = {item.chunk: (item.start, item.end) for item in parse.ref_exps}
    spans = [accepted(phrase) for phrase in row["phrases"]]
    found = set[int]()
    for number, chunk in enumerate(parse.chunks):
        span = (chunk.start, chunk.end)
        if chunk.removed or list(span) in row["optional"]:
            continue
        counts["judged"] += 1
        matches = [i for i, right in enumerate(spans) if span in right]
        if not matches:
            faults.append(Fault("wrong phrase", text[slice(*span)], ""))
            continue
        found.update(matches)
        phrase, expression = row["phrases"][matches[0]], expressions[number]
        ends = [phrase["expression"], *phrase["expression_alternatives"]]
        if expression == span and phrase["expression"][1] <= span[1]:
            continue
        counts["expanded"] += 1
        is_alone = expression == span and [phrase["start"], phrase["end"]] in ends
        is_right = expression[0] == span[0] and not lone_mark(text[slice(*expression)])
        if not (is_right and (is_alone or expression[1] in {end for _, end in ends})):
            faults.append(Fault("wrong expression", text[slice(*expression)], text[slice(*phrase["expression"])]))
    faults += [Fault("missing phrase", "", p["text"]) for i, p in enumerate(row["phrases"]) if i not in found]
    return counts + Counter(fault.kind for fault in faults), faults


def lone_mark(text: str) -> bool:
    """True if a bracket or quotation mark has no partner."""
    return bool(text.count('"') % 2) or any(text.count(a) != text.count(b) for a, b in ("()", "[]"))


def percent(counts: Mapping[str, int]) -> dict[str, float]:
    """Return the shares of counts in percent; 0 for a share of nothing."""
    return {name: round(100 * counts[part] / max(counts[of], 1), 1) for name, (part, of) in SHARES.items()}


def table(rows: Sequence[Mapping[str, Any]], parses: Sequence[CaptionParse]) -> dict[str, dict[str, float]]:
    """Return the shares of each kind of text, and of all."""
    kinds = defaultdict[str, Counter[str]](Counter)
    for row, parse in zip(rows, parses, strict=True):
        for kind in (row["kind"], "all"):
            kinds[kind] += judge(row, parse)[0]
    return {kind: {"phrases": counts["marked"], **percent(counts)} for kind, counts in sorted(kinds.items())}


def lines(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a table in Markdown, with the shares in percent."""
    yield "| kind | phrases | wrong | missing | expressions wrong |"
    yield "|---|--:|--:|--:|--:|"
    for kind, row in found.items():
        yield f"| {kind} | {row['phrases']:.0f} | {row['wrong']} | {row['missing']} | {row['expressions']} |"
