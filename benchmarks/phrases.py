"""Benchmark: noun phrases and referring expressions, compared with those that a person marked.

    python -m benchmarks.phrases [--split dev|held-out|all] [--captions FILE] [--ablation] [--errors]

The captions (tests/pipeline/stages/parse/captions.jsonl) were written for this project and labelled before the program
saw them. Intervals are 95 % bootstrap intervals over captions. Web texts (tests/data/web_texts.json) are compared by kind
(benchmarks/web_texts.py). `--ablation` repeats both without each rule, and in GRIT's form. The last line is one JSON
object; its `ratio` is the smallest quotient of figure and aim over the aims. A share of nothing is null.
"""

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import regex

from benchmarks.web_texts import judge, lines, table
from hypergrit_common.cli import command
from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.text import one_line
from pipeline.stages.parse.config import ParseConfig, Rules
from pipeline.stages.parse.parser import CaptionParser
from pipeline.stages.parse.recipe.labels import TEXTS, read_texts
from pipeline.stages.parse.types import CaptionParse

CAPTIONS: Final = Path(__file__).resolve().parents[1] / "tests" / "pipeline" / "stages" / "parse" / "captions.jsonl"
RULES: Final = tuple(item.name for item in fields(Rules))
"""Rules that GRIT's form lacks."""
SEPARATOR: Final = re.compile(r"\||--| - |–|—|: ")
LETTER: Final = regex.compile(r"\p{L}")
KINDS: Final = ("photo", "alt", "title", "product", "credit")
FORM: Final = '{"caption": "a red dog", "phrases": [{"start": 0, "end": 9, "head": [6, 9]}]}'
ROUNDS: Final = 1000
"""Bootstrap samples."""

Span = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A share of two counts. `aim` is its least value, or its greatest value if `is_error` is set."""

    title: str
    part: str
    total: str
    aim: float | None = None
    is_error: bool = False


MEASURES: Final = {
    "recall": Measure(title="marked phrases found exactly", part="found", total="marked", aim=0.9),
    "head_recall": Measure(title="heads of marked phrases found", part="head_found", total="marked"),
    "precision": Measure(title="kept phrases that were marked", part="found", total="kept"),
    "head_precision": Measure(title="kept phrases with the head of a marked one", part="head_right", total="kept"),
    "wrong_removals": Measure(
        title="marked phrases removed by the filter", part="lost", total="marked", aim=0.02, is_error=True
    ),
    "expressions": Measure(title="expressions found exactly", part="expression_found", total="expression_marked"),
    "overlong": Measure(
        title="expressions that take in a phrase of something else", part="overlong", total="expression_marked",
        is_error=True,
    ),
    "cut": Measure(
        title="expanded expressions cut at an inner conjunct", part="cut", total="expanded", aim=0.02, is_error=True
    ),
    "separator": Measure(
        title="kept phrases across a separator", part="separated", total="kept", aim=0.005, is_error=True
    ),
    "no_letter": Measure(
        title="kept phrases without a letter", part="letterless", total="kept", aim=0.0, is_error=True
    ),
    "malformed": Measure(
        title="kept phrases that overlap a marked one but differ", part="malformed", total="kept", aim=0.15,
        is_error=True,
    ),
}  # fmt: skip
PHOTO_AIMS: Final = ("recall", "wrong_removals", "cut")
WEB_AIMS: Final = ("separator", "no_letter", "malformed")


def count(row: Mapping[str, Any], parse: CaptionParse) -> Counter[str]:
    """Compare the parse of one caption with its labels."""
    caption, counts = row["caption"], Counter[str]()
    marked = {(p["start"], p["end"]): tuple(p["expression"] or ()) for p in row["phrases"]}
    heads = {tuple(p["head"]) for p in row["phrases"]}
    kept = {(c.start, c.end): n for n, c in enumerate(parse.chunks) if c.removed is None}
    removed = {(c.start, c.end) for c in parse.chunks if c.removed is not None}
    kept_heads = {(parse.tokens[c.root].start, parse.tokens[c.root].end) for c in parse.chunks if c.removed is None}
    expressions = {e.chunk: (e.start, e.end) for e in parse.ref_exps}
    counts["marked"], counts["kept"] = len(marked), len(kept)
    counts["found"] = len(marked.keys() & kept.keys())
    counts["lost"] = len((marked.keys() - kept.keys()) & removed)
    counts["head_found"] = sum(any(_overlap(h, k) for k in kept_heads) for h in heads)
    counts["head_right"] = sum(any(_overlap(h, k) for h in heads) for k in kept_heads)
    described = {s for s in marked.keys() & kept.keys() if marked[s]}
    counts["expression_marked"] = len(described)
    counts["expression_found"] = sum(marked[s] == expressions[kept[s]] for s in described)
    counts["overlong"] = sum(
        any(marked[s][1] <= other[0] and other[1] <= expressions[kept[s]][1] for other in marked) for s in described
    )
    counts["separated"] = sum(bool(SEPARATOR.search(caption[a:b])) for a, b in kept)
    counts["letterless"] = sum(not LETTER.search(caption[a:b]) for a, b in kept)
    counts["malformed"] = sum(s not in marked and any(_overlap(s, m) for m in marked) for s in kept)
    for span, number in kept.items():
        if expressions[number] != span:
            counts["expanded"] += 1
            counts["cut"] += _is_cut(parse, expressions[number], parse.chunks[number].root)
    return counts


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _is_cut(parse: CaptionParse, span: Span, root: int) -> bool:
    """True if the token after the expression is a conjunction or conjunct of a word inside it other than its root."""
    tokens = parse.tokens
    inside = {i for i, t in enumerate(tokens) if t.start < span[1] and t.end > span[0]}
    after = max(inside, default=-1) + 1
    while after < len(tokens) and tokens[after].pos == "PUNCT":
        after += 1
    if after == len(tokens) or tokens[after].dep not in ("cc", "conj"):
        return False
    return tokens[after].head in inside and tokens[after].head != root


def shares(counts: Iterable[Counter[str]]) -> dict[str, float]:
    """Return the measures over captions; NaN for a share of nothing."""
    summed = total(counts)
    return {name: summed[m.part] / summed[m.total] if summed[m.total] else math.nan for name, m in MEASURES.items()}


def total(counts: Iterable[Counter[str]]) -> Counter[str]:
    """Return the sum of counts."""
    result: Counter[str] = Counter()
    for part in counts:
        result.update(part)
    return result


def without(*rules: str) -> Rules:
    """Return the rules without some of them."""
    return Rules(**dict.fromkeys(rules, False))


def measure(rows: Sequence[Mapping[str, Any]], rules: Rules | None = None) -> list[Counter[str]]:
    """Return the counts of each caption."""
    parses = CaptionParser(ParseConfig(), rules).parse([row["caption"] for row in rows])
    return [count(row, parse) for row, parse in zip(rows, parses, strict=True)]


def print_errors(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print each caption whose phrases differ from the marked ones: missed (-), extra (+), removed (~)."""
    parses = CaptionParser(ParseConfig()).parse([row["caption"] for row in rows])
    for row, parse in zip(rows, parses, strict=True):
        caption = row["caption"]
        marked = {(p["start"], p["end"]): tuple(p["expression"] or ()) for p in row["phrases"]}
        kept = {(c.start, c.end): n for n, c in enumerate(parse.chunks) if c.removed is None}
        removed = {(c.start, c.end): c.removed for c in parse.chunks if c.removed}
        expressions = {e.chunk: (e.start, e.end) for e in parse.ref_exps}
        lines = [
            f"  - {caption[a:b]}" + (f" ~{removed[a, b]}" if (a, b) in removed else "")
            for a, b in marked.keys() - kept.keys()
        ]
        lines += [f"  + {caption[a:b]}" for a, b in kept.keys() - marked.keys()]
        lines += [
            f"  e {caption[slice(*expressions[kept[s]])]!r} instead of {caption[slice(*marked[s])]!r}"
            for s in marked.keys() & kept.keys()
            if marked[s] and expressions[kept[s]] != marked[s]
        ]
        if lines:
            print(f"[{row['kind']}] {caption}", *lines, sep="\n")


def intervals(
    figures: Callable[[Sequence[T]], Mapping[str, float]], items: Sequence[T], rounds: int = ROUNDS
) -> dict[str, tuple[float, float]]:
    """Return the 95 % bootstrap interval of each figure over `items`. All figures use the same samples."""
    rng = Random(0)
    samples = [figures(rng.choices(items, k=len(items))) for _ in range(rounds)]
    ordered = {name: sorted(sample[name] for sample in samples) for name in samples[0]}
    return {name: (values[int(0.025 * rounds)], values[int(0.975 * rounds)]) for name, values in ordered.items()}


def print_table(title: str, counts: Sequence[Counter[str]]) -> dict[str, float]:
    """Print the measures with their intervals and return them."""
    values = shares(counts)
    bounds = intervals(shares, counts) if counts else {}
    print(f"\n{title}: {len(counts)} captions")
    for name, m in MEASURES.items():
        total = sum(part[m.total] for part in counts)
        if total:
            low, high = bounds[name]
            print(f"  {m.title:52}{values[name]:7.3f}  [{low:.3f}, {high:.3f}]  of {total}")
    return values


def cell(value: float) -> str:
    """Return a figure of the table; a dash for a share of nothing."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def rounded(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return figures with four digits for JSON; None for a share of nothing."""
    return {name: None if math.isnan(value) else round(value, 4) for name, value in values.items()}


def aims(values: Mapping[str, float], names: Sequence[str]) -> list[float]:
    """Return, for each measure with an aim, figure / aim (for errors: the share without the error).

    Shares of nothing are left out.
    """
    quotients = []
    for name in names:
        m = MEASURES[name]
        if math.isnan(values[name]):
            continue
        assert m.aim is not None
        quotients.append((1 - values[name]) / (1 - m.aim) if m.is_error else values[name] / m.aim)
    return quotients


def read_labelled(path: Path, split: str) -> list[dict[str, Any]]:
    """Return the labelled captions of a split; "all" for all of them. A caption without a split is in each of them.

    A caption without `kind` is a photo caption, a phrase without `expression` has none. Raises UserError with file,
    line and fix.
    """
    try:
        check_file(path)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}; give a JSONL file of labelled captions") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(labelled(json.loads(line)))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {problem(error)}; a line has the form {FORM}") from error
    chosen = [row for row in rows if split == "all" or row["split"] in (split, None)]
    if not chosen:
        raise UserError(f"{path} has no caption of the split {split!r}; label some, one per line: {FORM}")
    return chosen


def labelled(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a labelled caption with all its fields. Raises ValueError, KeyError or TypeError if it is malformed."""
    caption, kind = row["caption"], row.get("kind", "photo")
    if not isinstance(caption, str) or kind not in KINDS:
        raise ValueError(f"the caption is no text, or its kind is not one of {', '.join(KINDS)}")
    phrases = []
    for phrase in row["phrases"]:
        start, end = span((phrase["start"], phrase["end"]), caption)
        head = span(phrase["head"], caption)
        expression = phrase.get("expression")
        if expression:
            expression = list(span(expression, caption))
        phrases.append({"start": start, "end": end, "head": list(head), "expression": expression or None})
    return {"caption": caption, "kind": kind, "split": row.get("split"), "phrases": phrases}


def span(bounds: Any, caption: str) -> tuple[int, int]:
    """Return a span [start, end) of characters. Raises ValueError or TypeError if it is not in the caption."""
    start, end = bounds
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(caption):
        raise ValueError(f"the span from {start!r} to {end!r} is not in the caption")
    return start, end


def problem(error: Exception) -> str:
    """Return what is wrong with a line."""
    return f"{one_line(error)} is missing" if isinstance(error, KeyError) else one_line(error)


@command()
def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", choices=("dev", "held-out", "all"), default="held-out")
    parser.add_argument(
        "--captions", type=Path, default=CAPTIONS, help="JSONL file with labelled captions (docs/phrases.md)"
    )
    parser.add_argument("--ablation", action="store_true", help="also measure without each rule")
    parser.add_argument("--errors", action="store_true", help="print the captions with differences")
    arguments = parser.parse_args()
    rows = read_labelled(arguments.captions, arguments.split)
    if arguments.errors:
        print_errors(rows)
    is_photo: Callable[[Mapping[str, Any]], bool] = lambda row: row["kind"] == "photo"  # noqa: E731
    photo, web = [row for row in rows if is_photo(row)], [row for row in rows if not is_photo(row)]
    results = {"photo": print_table("photo captions", measure(photo))}
    results["web"] = print_table("captions of other kinds", measure(web))
    texts = read_texts(TEXTS, arguments.split)
    parses = list(CaptionParser(ParseConfig()).parse([row["text"] for row in texts]))
    kinds = table(texts, parses)
    print(f"\n{len(texts)} web texts", *lines(kinds), sep="\n")
    if arguments.errors:
        for row, parse in zip(texts, parses, strict=True):
            for fault in judge(row, parse)[1]:
                print(
                    f"[{row['kind']}] {fault.kind}: {fault.found!r} {fault.marked and f'not {fault.marked!r} '}in {row['text']}"
                )
    without_rule: dict[str, Any] = {}
    if arguments.ablation:
        forms = {"all rules": Rules(), **{f"without {rule}": without(rule) for rule in RULES}}
        forms["GRIT's form"] = without(*RULES)
        names = ("recall", "precision", "head_recall", "wrong_removals", "expressions", "cut", "separator")
        print(f"\n{'':32}" + "".join(f"{name:>15}" for name in names))
        for title, form in forms.items():
            for kind, part in (("photo", photo), ("web", web)):
                values = shares(measure(part, form))
                without_rule.setdefault(title, {})[kind] = rounded({name: values[name] for name in names})
                print(f"{title:26}{kind:6}" + "".join(f"{cell(values[name]):>15}" for name in names), flush=True)
            found = CaptionParser(ParseConfig(), form).parse([row["text"] for row in texts])
            without_rule[title]["web_texts"] = table(texts, list(found))["all"]
            print(f"{title:26}texts {without_rule[title]['web_texts']}", flush=True)
    quotients = aims(results["photo"], PHOTO_AIMS) + aims(results["web"], WEB_AIMS)
    if not quotients:
        raise UserError(f"{arguments.captions} has neither a marked phrase nor one that is kept; label other captions")
    figures = {kind: rounded(values) for kind, values in results.items()}
    print(
        json.dumps(
            {
                "name": "phrases",
                "split": arguments.split,
                **figures,
                "web_texts": kinds,
                "ablation": without_rule,
                "ratio": round(min(quotients), 3),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
