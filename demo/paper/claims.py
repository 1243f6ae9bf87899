"""Claims of the papers about rows and metrics that the miniature has, from `claims.csv`.

A claim compares the metric of the row `first` with that of the row `second`, or without one with the chance level 0.5.
Its direction is above, below, or "not above": a claim that something does not help. Nothing is tuned to them.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

Direction = Literal["above", "below", "not above"]
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
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
        return tuple(
            Claim(
                paper=row["paper"],
                source=row["source"],
                text=row["text"],
                metric=row["metric"],
                first=row["first"],
                second=row["second"] or None,
                direction=next(name for name in DIRECTIONS if name == row["direction"]),
            )
            for row in csv.DictReader(file)
        )
