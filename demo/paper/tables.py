"""The tables of the study, tables.csv: rows of ours with intervals, beside the printed ones.

The file has the columns of each table: metrics TASK:METRIC of the main rows with the papers' names of those that they
print, or metrics of rows of ablations, each ROW=VALUE with the printed value, which may be empty.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd

from demo.paper.plan import MAIN
from demo.paper.results import CONDITIONS, PRINTED_AS, RowResults, Rows, chance_of, estimate, shown
from trainer.evaluation.report.tables import is_share, published, source_of
from trainer.models.registry import MODELS

DESIGNS: Final = pd.read_csv(Path(__file__).with_name("tables.csv"), keep_default_na=False)
HEADINGS: Final[dict[str, str]] = DESIGNS[DESIGNS["title"] == "Main results"].set_index("metric")["heading"].to_dict()
"""Headings of the main table by metric."""


class Cell(NamedTuple):
    """A metric of a row as text."""

    text: str
    n_seeds: int = 0
    is_best: bool = False  # or not separated from the best by the interval of the paired difference
    printed: str = ""  # the value of the paper's table

    @property
    def markdown(self) -> str:
        """The cell of Markdown, with the printed value in brackets."""
        mark = "**" * self.is_best
        return f"{mark}{self.text}{f' ({self.printed})' * bool(self.printed)}{mark}"


PrintedLine = tuple[str, str, list[Cell]]  # a row of a table: its name, its source, its cells


def all_tables(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield all tables with at least one row: rows of ours by condition, and the papers' rows."""
    main = {
        about: [row for key, row in rows.items() if row.variant.table == MAIN and key == row.variant.row + suffix]
        for suffix, about in CONDITIONS.values()
    }
    for title, design in DESIGNS.groupby("title", sort=False):
        texts = design.set_index("metric")["printed"].str.split()
        printed = {metric: dict(text.split("=") for text in words) for metric, words in texts.items()}
        keys = dict.fromkeys(chain(*printed.values()))
        groups = {CONDITIONS["crops"][1]: [rows[key] for key in keys if key in rows]} if keys else main
        if made := {about: lines(found, printed) for about, found in groups.items() if found}:
            papers = paper_lines(design, rows)
            yield {"title": title, "headings": list(design["heading"]), "groups": made, "papers": papers}


def lines(rows: Sequence[RowResults], printed: Mapping[str, Mapping[str, str]]) -> list[PrintedLine]:
    """The lines of rows, with the best of each column marked, and a line with the chance levels."""
    best = {name: best_of(rows, name) for name in printed}
    made = list[PrintedLine]()
    for row in rows:
        cells = [our_cell(name, row, best[name], printed[name].get(row.variant.key, "")) for name in printed]
        made.append((row.variant.title, f"{len(row.facts)} seeds", cells))
    levels = {name: chance_of(rows, name) for name in printed}
    if any(level is not None for level in levels.values()):
        made.append(("chance", "", [Cell(shown(name, level)) for name, level in levels.items()]))
    return made


def best_of(rows: Sequence[RowResults], metric: str) -> RowResults | None:
    """The row with the best mean of a metric: the smallest of TIE and LCA, else the largest; None for a single row."""
    sign = 1 if is_share(metric) or metric.endswith("tau") else -1
    found = [row for row in rows if metric in row.metrics]
    return max(found, key=lambda row: float(sign * row.metrics[metric].mean())) if len(found) > 1 else None


def our_cell(metric: str, row: RowResults, best: RowResults | None, printed: str) -> Cell:
    """The cell of a metric TASK:METRIC."""
    if (found := estimate(metric, row)) is None:
        return Cell("–", printed=printed)
    gap = estimate(metric, row, best) if best else None
    half = f" ± {shown(metric, found.half())}" if found.n_seeds > 1 else ""
    is_best = row is best or (gap is not None and gap.n_seeds > 1 and gap.side == 0)
    return Cell(f"{shown(metric, found.value)}{half}{'' if found.has_items else 'ˢ'}", found.n_seeds, is_best, printed)


def paper_lines(design: pd.DataFrame, rows: Rows) -> list[PrintedLine]:
    """The papers' rows of the models of the study that have a value in one of the columns."""
    models = {MODELS[row.variant.model].title for row in rows.values()}
    task = design["metric"].iloc[0].partition(":")[0]
    entries = [row for row in published().get(PRINTED_AS.get(task, task), ()) if row["model"] in models]
    cells = [[Cell(row["values"].get(name, "–")) for name in design["papers"]] for row in entries]
    found = zip(entries, cells, strict=True)
    return [(row["model"], source_of(row), made) for row, made in found if any(cell.text != "–" for cell in made)]
