"""Results of the runs by variant, and the verdicts on the claims."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from demo.paper.plan import run_name
from demo.paper.statistics import Interval, above, difference
from demo.paper.store import Result, read_result
from demo.paper.variants import Variant
from trainer.evaluation.metrics.items import Items

Direction = Literal["above", "below", "not above"]
CHANCE: Final = 0.5
FILE: Final = Path(__file__).with_name("claims.csv")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper, with its table, figure or equation. `metric` is TASK:METRIC of `trainer.evaluate`."""

    paper: str
    source: str
    text: str
    metric: str
    first: str
    second: str | None
    direction: Direction

    @property
    def rows(self) -> str:
        """The rows whose difference is judged."""
        return f"{self.first} - {self.second or 'chance'}"


@cache
def claims() -> tuple[Claim, ...]:
    """The claims in the order of the file."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = [{**row, "second": row["second"] or None} for row in csv.DictReader(file)]
    return tuple(Claim(**row) for row in rows)


Verdict = Literal["shown", "not shown", "contradicted", "not measured"]
VERDICTS: Final[tuple[Verdict, ...]] = ("shown", "not shown", "contradicted", "not measured")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of a variant, one per seed."""

    variant: Variant
    results: Sequence[Result]

    def metric(self, name: str) -> list[float]:
        """The values of a metric TASK:METRIC, one per seed; empty if the model has no such metric."""
        values = [result.metrics[name] for result in self.results if name in result.metrics]
        return values if len(values) == len(self.results) else []

    def items_of(self, name: str) -> list[Items]:
        """The items of a metric, one per seed; empty if there are none."""
        return [result.items[name] for result in self.results if name in result.items]

    def chance(self, name: str) -> float | None:
        """The chance level of a metric TASK:METRIC; None if it has none."""
        return self.results[0].chance.get(name)


def read_row(results: Path, variant: Variant, n_seeds: int) -> Row:
    """Read the results of a variant. Raises UserError, naming the file, for one that is missing or damaged."""
    paths = [results / f"{run_name(variant, seed)}.parquet" for seed in range(n_seeds)]
    return Row(variant=variant, results=[read_result(path) for path in paths])


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a claim, with the measured difference of its rows and the interval; None if not measured."""

    claim: Claim
    verdict: Verdict
    interval: Interval | None
    is_at_chance: bool = False
    """True if the claim could not be shown, because neither row differs from chance level."""


def judge(claim: Claim, rows: Mapping[str, Row], n_replicates: int) -> Judgement:
    """Compare the rows of a claim. A claim is shown or contradicted if the interval lies on one side of 0."""
    first, second = (
        rows[key].items_of(claim.metric) if key in rows else [] for key in (claim.first, claim.second or "")
    )
    if not first or (claim.second and not second):
        return Judgement(claim=claim, verdict="not measured", interval=None)
    found = difference(first, second, n_replicates) if claim.second else above(first, CHANCE, n_replicates)
    sign = 1 if claim.direction == "above" else -1
    verdicts: dict[int, Verdict] = {1: "shown", 0: "not shown", -1: "contradicted"}
    keys = [claim.first, claim.second] if claim.second and not found.side else []
    at_chance = bool(keys) and all(is_at_chance(rows[key], claim.metric, n_replicates) for key in keys)
    return Judgement(claim=claim, verdict=verdicts[sign * found.side], interval=found, is_at_chance=at_chance)


def is_at_chance(row: Row, metric: str, n_replicates: int) -> bool:
    """True if the interval of a metric TASK:METRIC contains its chance level."""
    level = row.chance(metric)
    return level is not None and above(row.items_of(metric), level, n_replicates).side == 0
