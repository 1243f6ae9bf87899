"""Results of the rows, and the verdicts on the claims."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

from demo.paper.statistics import Estimate, crossed, layout, seeds_only
from demo.paper.store import Result, read_result
from demo.paper.variants import Variant

FILE: Final = Path(__file__).with_name("claims.csv")
Direction = Literal["above", "below", "not above", "not below", "equal", "differ"]
Kind = Literal["claim", "objective", "component"]
"""What a claim is: a result, a restatement of what a loss asks for, or one component of a model, without a direction."""
Verdict = Literal["holds", "reversed", "absent", "undecided", "not testable", "not measured"]
"""reversed: the opposite is shown; absent: a difference as large as the margin is excluded."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
CONDITIONS: Final = {
    "crops": ("", "features of a CLIP that saw crops of boxes"),
    "scenes": ("@scenes", "features of a CLIP that saw whole scenes only"),
    "true boxes": ("@true", "features as for crops, true boxes"),
}
"""Suffix of the rows and description by condition. Rows that use no box are the same with predicted and with true boxes."""
COUNTED: Final = ("crops", "scenes")
"""The conditions on which a claim is judged; the last one is shown beside them."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper with its source. `metric` is TASK:METRIC; without `second`, the row is compared with chance.

    `margin`, in the unit of the metric, is the difference that counts as none.
    """

    paper: str
    source: str
    kind: Kind
    text: str
    metric: str
    first: str
    second: str
    direction: Direction
    margin: float


@cache
def claims() -> tuple[Claim, ...]:
    """The claims in the order of the file."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = [{**row, "margin": float(row["margin"])} for row in csv.DictReader(file)]
    return tuple(Claim(**row) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of a variant by seed."""

    variant: Variant
    results: Mapping[int, Result]

    def values(self, metric: str, seeds: Sequence[int] | None = None) -> list[float]:
        """The values of a metric TASK:METRIC for seeds that have it."""
        return [self.results[seed].metrics[metric] for seed in seeds or self.seeds(metric)]

    def seeds(self, metric: str) -> list[int]:
        """The seeds with a metric TASK:METRIC."""
        return [seed for seed, result in sorted(self.results.items()) if metric in result.metrics]

    def has_items(self, metric: str) -> bool:
        """True if the metric is a mean of items, and they are stored."""
        found = [self.results[seed].items.get(metric) for seed in self.seeds(metric)]
        return bool(found) and all(items is not None and items.reduction == "mean" for items in found)

    def chance(self, metric: str) -> float | None:
        """The chance level of a metric TASK:METRIC; None if it has none."""
        return next(
            (found for result in self.results.values() if (found := result.chance.get(metric)) is not None), None
        )


Rows = Mapping[str, Row]


def chance_of(rows: Rows, metric: str) -> float | None:
    """The chance level of a metric TASK:METRIC in the first row that has one; None without one."""
    return next((found for row in rows.values() if (found := row.chance(metric)) is not None), None)


def read_rows(folder: Path, variants: Sequence[tuple[Variant, int]]) -> dict[str, Row]:
    """Read the results of variants, each with its number of seeds. Rows and seeds without a file are left out.

    Raises UserError, naming the file, for one that is damaged.
    """
    rows = {}
    for variant, n_seeds in variants:
        paths = {seed: folder / f"{variant.key}-{seed}.parquet" for seed in range(n_seeds)}
        if results := {seed: read_result(path) for seed, path in paths.items() if path.is_file()}:
            rows[variant.key] = Row(variant=variant, results=results)
    return rows


def estimate(first: Row, metric: str, second: Row | None = None, level: float = 0.0) -> Estimate | None:
    """The metric of a row minus that of a second one, on their common seeds, or minus a level. None without the metric.

    It covers seeds and items if both rows have the items of the metric, and else seeds alone.
    """
    rows = [first, *([second] if second else [])]
    seeds = sorted(set.intersection(*(set(row.seeds(metric)) for row in rows)))
    if not seeds:
        return None
    if not all(row.has_items(metric) for row in rows):
        values = [row.values(metric, seeds) for row in rows]
        return seeds_only([found[0] - (found[1] if second else level) for found in zip(*values, strict=True)])
    cells = layout([row.results[seed].items[metric] for row in rows for seed in seeds])
    return crossed(cells[: len(seeds)] - (cells[len(seeds) :] if second else level))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict on a claim under one condition, with the difference; None if it was not measured."""

    verdict: Verdict
    estimate: Estimate | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim with its findings by condition, and the verdict over the towers; "mixed" if they differ."""

    claim: Claim
    findings: Mapping[str, Finding]

    @property
    def verdict(self) -> Verdict | Literal["mixed"]:
        """The verdict of all towers on which the claim was measured."""
        is_two_sided = self.claim.direction == "differ"
        counted = [item for name in COUNTED if (item := self.findings[name]).verdict != "not measured"]
        found = {(item.verdict, item.estimate.side if is_two_sided and item.estimate else 0) for item in counted}
        return "mixed" if len(found) > 1 else counted[0].verdict if counted else "not measured"


def judge(claim: Claim, rows: Rows) -> Judgement:
    """Judge a claim under each condition."""
    return Judgement(claim=claim, findings={name: finding(claim, rows, name) for name in CONDITIONS})


def finding(claim: Claim, rows: Rows, condition: str) -> Finding:
    """Compare the rows of a claim under a condition."""
    first, second = (rows.get(key) for key in keys_of(claim, rows, condition))
    level = first.chance(claim.metric) if first and not claim.second else 0.0
    if first is None or level is None or (claim.second and second is None):
        return Finding(verdict="not measured")
    found = estimate(first, claim.metric, second, level)
    if found is None:
        return Finding(verdict="not measured")
    tested = [row for row in (first, second) if row and claim.second and claim.kind == "claim"]
    if any(is_at_chance(row, claim.metric) for row in tested):
        return Finding(verdict="not testable", estimate=found)
    return Finding(verdict=verdict(claim.direction, claim.margin, found), estimate=found)


def keys_of(claim: Claim, rows: Rows, condition: str) -> tuple[str, str]:
    """The keys of the rows of a claim under a condition. With true boxes, a row without boxes is that of the crops."""
    suffix = CONDITIONS[condition][0]
    first, second = f"{claim.first}{suffix}", f"{claim.second}{suffix}"
    if condition == "true boxes" and (first in rows or second in rows):
        uses_boxes = [key in rows and rows[key].variant.has_boxes for key in (claim.first, claim.second)]
        return (first if uses_boxes[0] else claim.first, second if uses_boxes[1] else claim.second)
    return first, second


def verdict(direction: Direction, margin: float, found: Estimate) -> Verdict:
    """The verdict on a difference. Directions above and below need an interval of 95 % on their side of 0.

    The others need one-sided tests of level 5 % against the margin; they are reversed if the interval of 95 % lies on
    the other side of 0.
    """
    sign = -1 if direction in ("below", "not below") else 1
    signed = found._replace(value=sign * found.value)
    if direction in ("above", "below", "differ"):
        side = abs(signed.side) if direction == "differ" else signed.side
        found_by_side: dict[int, Verdict] = {1: "holds", -1: "reversed"}
        return found_by_side.get(side, "absent" if signed.is_within(margin) else "undecided")
    if signed.is_within(margin) if direction == "equal" else signed.is_below(margin):
        return "holds"
    return "reversed" if signed.side > 0 or (direction == "equal" and signed.side) else "undecided"


def is_at_chance(row: Row, metric: str) -> bool:
    """True if the interval of a metric contains its chance level, or that of the accuracy on its set if it has none."""
    name = (
        metric
        if row.chance(metric) is not None
        else f"classification:{metric.partition(':')[2].split('/')[0]}/accuracy"
    )
    level = row.chance(name)
    found = estimate(row, name, level=level) if level is not None else None
    return found is not None and found.side == 0


def n_false(judgements: Sequence[Judgement]) -> tuple[int, int, float]:
    """The number of tests on which verdicts rest, of those over seeds alone, and of false directions if no rows differed.

    A test of level 5 % finds a direction in 5 of 100 cases, half of them in the claimed direction.
    """
    findings = [entry.findings[name] for entry in judgements for name in COUNTED]
    tests = [found.estimate for found in findings if found.estimate and found.verdict != "not testable"]
    return len(tests), sum(not found.has_items for found in tests), 0.05 * len(tests)
