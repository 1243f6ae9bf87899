"""Results of the rows, and the verdicts on the claims."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from demo.paper.plan import VARIANTS, Variant
from demo.paper.statistics import Items, MeanWithError, crossed, layout, seeds_only
from demo.paper.store import read_result
from trainer.evaluation.report.tables import is_share, show

FILE: Final = Path(__file__).with_name("claims.csv")
Direction = Literal["above", "below", "not above", "not below", "equal", "differ"]
Verdict = Literal["holds", "reversed", "absent", "undecided", "not testable", "not measured"]
"""reversed: the opposite is shown; absent: a difference as large as the margin is excluded."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
CONDITIONS: Final = {  # suffix of the rows, description
    "crops": ("", "features of a CLIP that saw crops of boxes"),
    "scenes": ("@scenes", "features of a CLIP that saw whole scenes only"),
    "true boxes": ("@true", "features as for crops, true boxes"),
}
COUNTED: Final = ("crops", "scenes")  # conditions on which a claim is judged; the last one is shown beside them
PRINTED_AS: Final = {"chains": "hierarcaps"}  # the papers' task by ours, where their names differ


class Claim(NamedTuple):
    """A claim of a paper with its source. `metric` is TASK:METRIC; without `second`, the row is compared with chance."""

    paper: str
    source: str
    kind: Literal["claim", "objective", "component"]  # a result, what a loss asks for, or one component of a model
    text: str
    metric: str
    first: str
    second: str
    direction: Direction
    margin: float  # the difference that counts as none, in the unit of the metric


@cache
def claims() -> tuple[Claim, ...]:
    """The claims in the order of the file."""
    return tuple(Claim(**row) for row in pd.read_csv(FILE, keep_default_na=False).to_dict("records"))


@dataclass(frozen=True, kw_only=True, eq=False)
class RowResults:
    """The results of a variant, by seed and by metric TASK:METRIC."""

    variant: Variant
    metrics: pd.DataFrame  # values by seed, in columns by metric
    chance: "pd.Series[float]"  # levels of the metrics that have one
    items: Mapping[tuple[int, str], Items]  # of the metrics that are means of items, if they are stored
    facts: Mapping[int, dict[str, Any]]  # about each run, see demo.paper.run

    def has_items(self, metric: str) -> bool:
        """True if the metric is a mean of items, and they are stored."""
        return all((seed, metric) in self.items for seed in self.metrics[metric].dropna().index)


Rows = Mapping[str, RowResults]


def read_rows(folder: Path, n_seeds: Mapping[Variant, int]) -> dict[str, RowResults]:
    """Read the results of variants with their numbers of seeds. Rows and seeds without a file are left out.

    Raises UserError, naming the file, for one that is damaged.
    """
    found = {}
    for row, n in n_seeds.items():
        paths = {seed: folder / f"{row.key}-{seed}.parquet" for seed in range(n)}
        if results := {seed: read_result(path) for seed, path in paths.items() if path.is_file()}:
            found[row.key] = row_of(row, results)
    return found


def row_of(variant: Variant, results: Mapping[int, tuple[pd.DataFrame, dict[str, Any]]]) -> RowResults:
    """The row of the metrics and the facts of each run, by seed."""
    table = pd.concat({seed: metrics for seed, (metrics, _) in results.items()}, names=["seed", "name"])
    kept = table.loc[table["reduction"].notna(), ["values", "units"]].itertuples()
    items = {key: Items(values, np.arange(len(values)) if units is None else units) for key, values, units in kept}
    facts = {seed: facts for seed, (_, facts) in results.items()}
    chance = table["chance"].groupby("name").first().dropna()
    return RowResults(variant=variant, metrics=table["value"].unstack(), chance=chance, items=items, facts=facts)


def chance_of(rows: Iterable[RowResults], metric: str) -> float | None:
    """The chance level of a metric in the first row that has one; None without one."""
    return next((row.chance[metric] for row in rows if metric in row.chance), None)


def estimate(
    metric: str, first: RowResults, second: RowResults | None = None, *, level: float = 0.0
) -> MeanWithError | None:
    """The metric of a row minus that of a second one, on their common seeds, or minus a level. None without the metric.

    It covers seeds and items if both rows have the items of the metric, and else seeds alone.
    """
    rows = [row for row in (first, second) if row]
    if any(metric not in row.metrics for row in rows):
        return None
    gaps = (first.metrics[metric] - (second.metrics[metric] if second else level)).dropna()
    if gaps.empty:
        return None
    if not all(row.has_items(metric) for row in rows):
        return seeds_only(gaps)
    cells = layout([row.items[seed, metric] for row in rows for seed in gaps.index])
    return crossed(cells[: len(gaps)] - (cells[len(gaps) :] if second else level))


def shown(metric: str, value: float | None) -> str:
    """A value of TASK:METRIC as text."""
    task, _, name = metric.partition(":")
    return show(PRINTED_AS.get(task, task), name, value)


def interval(metric: str, found: MeanWithError) -> str:
    """A difference of a metric TASK:METRIC with its interval, in percentage points or in the unit of the metric."""
    value, low, high = (shown(metric, number) for number in (found.value, found.low, found.high))
    unit = " points" if is_share(metric) and len(value.partition(".")[2]) == 1 else ""
    bounds = f" [{low}, {high}]" if math.isfinite(found.error) else " (one seed)"
    return f"{'+' * (found.value > 0)}{value}{unit}{bounds}{'' if found.has_items else 'ˢ'}"


class Finding(NamedTuple):
    """The verdict on a claim under one condition, with the difference, if it was measured, and its text."""

    verdict: Verdict
    estimate: MeanWithError | None = None
    text: str = ""


class Judgement(NamedTuple):
    """A claim with its findings by condition."""

    claim: Claim
    findings: Mapping[str, Finding]

    @property
    def counted(self) -> list[Finding]:
        """The findings on which the verdict rests."""
        return [self.findings[name] for name in COUNTED]

    @property
    def size(self) -> float | None:
        """The size of the first measured difference, in the order of the conditions; None without one."""
        return next((abs(found.estimate.value) for found in self.findings.values() if found.estimate), None)

    @property
    def verdict(self) -> Verdict | Literal["mixed"]:
        """The verdict of all towers on which the claim was measured; "mixed" if they differ."""
        measured = [(item.verdict, item.estimate.side) for item in self.counted if item.estimate]
        found = {(name, side if self.claim.direction == "differ" else 0) for name, side in measured}
        return "mixed" if len(found) > 1 else measured[0][0] if measured else "not measured"

    @property
    def is_small(self) -> bool:
        """True if a difference is shown, but one as large as the margin is excluded on all towers."""
        found = [item.estimate for item in self.counted if item.estimate]
        has_side = self.verdict in ("holds", "reversed") and any(value.side for value in found)
        return has_side and all(value.is_within(self.claim.margin) for value in found)

    @property
    def words(self) -> str:
        """The verdict, with a mark if the difference is smaller than the margin."""
        words = "an effect" if self.claim.kind == "component" and self.verdict == "holds" else self.verdict
        return f"{words}; the difference is less than the margin" if self.is_small else words


def judge(claim: Claim, rows: Rows) -> Judgement:
    """Judge a claim under each condition."""
    return Judgement(claim, {name: finding(claim, rows, name) for name in CONDITIONS})


def finding(claim: Claim, rows: Rows, condition: str) -> Finding:
    """Compare the rows of a claim under a condition. With true boxes, a row without boxes is that of the crops."""
    names, suffix = [name for name in (claim.first, claim.second) if name], CONDITIONS[condition][0]
    is_true = condition == "true boxes" and any(name + suffix in rows for name in names)
    keys = [name + suffix * (not is_true or VARIANTS[name].has_boxes) for name in names]
    compared = [rows[key] for key in keys if key in rows]
    level = 0.0 if claim.second or not compared else compared[0].chance.get(claim.metric)
    if len(compared) < len(names) or level is None or not (found := estimate(claim.metric, *compared, level=level)):
        return Finding("not measured")
    name = verdict(claim.direction, claim.margin, found)
    if claim.second and claim.kind == "claim" and any(is_at_chance(row, claim.metric) for row in compared):
        name = "not testable"
    return Finding(name, found, interval(claim.metric, found))


def verdict(direction: Direction, margin: float, found: MeanWithError) -> Verdict:
    """The verdict on a difference. Directions above and below need an interval of 95 % on their side of 0.

    The others need one-sided tests of level 5 % against the margin; they are reversed if the interval of 95 % lies on
    the other side of 0.
    """
    signed = found._replace(value=-found.value) if direction in ("below", "not below") else found
    if direction in ("above", "below", "differ"):
        if signed.side:
            return "holds" if signed.side > 0 or direction == "differ" else "reversed"
        return "absent" if signed.is_within(margin) else "undecided"
    if signed.is_within(margin) if direction == "equal" else signed.is_below(margin):
        return "holds"
    return "reversed" if signed.side > 0 or (direction == "equal" and signed.side) else "undecided"


def is_at_chance(row: RowResults, metric: str) -> bool:
    """True if the interval of a metric contains its chance level, or that of the accuracy on its set if it has none."""
    if metric not in row.chance:
        metric = f"classification:{metric.partition(':')[2].split('/')[0]}/accuracy"
    found = estimate(metric, row, level=row.chance[metric]) if metric in row.chance else None
    return found is not None and found.side == 0
