"""The rows that a study trains (rows.csv), and the sizes that a study can have (sizes.yaml).

A row is the training of a head with the loss of a model on cached features. One that bears the name of a paper has the
defaults of its model, the loss and constants of the paper or of its released code (docs/paper.md has the differences), but
for 8 factors of PHyCLIP at width 64 and the boxes of UNCHA's released code. A row of a table of ablations changes what the
table names. Main rows and controls have 10 seeds, others 5 or fewer.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from trainer.models.registry import MODELS

Tower = Literal["crops", "scenes"]
MAIN: Final = "main"
FOLDER: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row: a model with settings of the trainer, on the features of a tower and the boxes of a detector or the true ones."""

    row: str
    model: str
    title: str
    table: str
    seeds: int
    tuned_as: str  # the row of the same tower whose rate and step it has; empty: its own
    longer: int  # factor on the number of steps
    overrides: tuple[str, ...]
    tower: Tower = "crops"
    boxes: Literal["predicted", "true"] = "predicted"

    @property
    def key(self) -> str:
        """The name of the row, with its tower or boxes if they are not those of most rows."""
        return f"{self.row}{'@scenes' * (self.tower == 'scenes')}{'@true' * (self.boxes == 'true')}"

    @property
    def choice(self) -> str:
        """The name of the choice of rate and step that the row uses: TOWER/ROW."""
        return f"{self.tower}/{self.tuned_as or self.row}"

    @property
    def has_boxes(self) -> bool:
        """True if boxes are used, as general concepts or as further pairs."""
        return hasattr(MODELS[self.model].config, "use_boxes") or "model.boxes_as_pairs=true" in self.overrides


def variant(entry: Mapping[str, str]) -> Variant:
    """The row of an entry of the file."""
    typed: dict[str, Any] = {name: int(entry[name]) for name in ("seeds", "longer")}
    return Variant(**{**entry, **typed, "overrides": tuple(entry["overrides"].split())})


def variants() -> Iterator[Variant]:
    """Yield all rows in the order in which they are trained."""
    with (FOLDER / "rows.csv").open(newline="", encoding="utf-8") as file:
        rows = [variant(entry) for entry in csv.DictReader(file)]
    main = [row for row in rows if row.table == MAIN]
    yield from main
    yield from (replace(row, tower="scenes") for row in main)
    yield from (row for row in rows if row.table != MAIN)
    yield from (replace(row, boxes="true", seeds=5, tuned_as=row.row) for row in main if row.has_boxes)


VARIANTS: Final[dict[str, Variant]] = {row.key: row for row in variants()}


@dataclass(frozen=True, kw_only=True)
class Size:
    """Data, trainings and evaluations of a study. All trainings of a row see the same number of image-text pairs."""

    about: str
    train_rows: int = 60_000
    held_out_rows: int = 1000
    rows: tuple[str, ...] = tuple(VARIANTS)
    seeds: int = 10  # largest number of seeds of a row
    rates: tuple[float, ...] = (2e-3, 4e-3, 8e-3, 1.6e-2)  # learning rates among which the validation split chooses
    steps: tuple[int, ...] = (500, 1000)  # steps of a training of the last number among which it chooses too
    tuning_seeds: int = 2
    pictures: int = 28  # test scenes of each concept
    captioned: int = 2000  # scenes for retrieval, with two captions each; a quarter as many chains
    pairs: int = 1000  # pairs of captions in each file of hard negatives
    overrides: tuple[str, ...] = ()
    has_claims: bool = True  # false if the trainings are too short for statements about the models
    runner: Literal["ray", "local"] = "ray"  # of the pipeline

    @property
    def seeds_of(self) -> dict[Variant, int]:
        """The rows in the order in which they are trained, with their numbers of seeds."""
        return {VARIANTS[key]: min(self.seeds, VARIANTS[key].seeds) for key in self.rows}


def size(values: dict[str, Any]) -> Size:
    """The size of an entry of the file."""
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Size(**values | lists)


ENTRIES: Final = yaml.safe_load((FOLDER / "sizes.yaml").read_text(encoding="utf-8"))
SIZES: Final[dict[str, Size]] = {name: size(values) for name, values in ENTRIES.items()}
