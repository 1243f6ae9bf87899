"""Tables of results: our models above the published rows of the papers, as rows of text for Markdown and HTML."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from trainer.evaluation.catalog import TASKS

PUBLISHED: Final = Path(__file__).resolve().parents[1] / "data" / "published.json"
PLAIN: Final = re.compile(
    r"TIE|LCA|tau|norm|distance|radius|rank|curvature|count|nats|bits|radians|distortion|pearson|spearman",
    re.IGNORECASE,
)
"""Metrics that are not shares, by a part of their last name."""
MAX_COLUMNS: Final = 24
SHORT: Final = {"text_to_image": "text → image", "image_to_text": "image → text", "P_H": "P_H", "R_H": "R_H",
                "TIE": "TIE ↓", "LCA": "LCA ↓", "LCA_max": "LCA max ↓"}  # fmt: skip
"""Headings of metrics; ↓: lower is better."""
kind_of: Final = partial(re.sub, r"[^/]+/", "/")
"""The name of a metric without those of data sets."""

UNITS: Final = "Rows of papers are as printed. Other numbers have the unit of the papers' column, or are in percent."

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Content of the JSON files, by model and by task."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number as text, and its share of 1 for a bar; without a bar if it is not a share."""

    text: str
    share: float | None = None
    is_best: bool = False


@dataclass(frozen=True, kw_only=True)
class TableLine:
    """A row of a table: a model of ours, or a published one with its paper and table."""

    name: str
    source: str
    is_ours: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The columns, each with the parts of its heading, and the rows."""

    columns: tuple[str, ...]
    lines: tuple[TableLine, ...]

    @property
    def headings(self) -> list[list[str]]:
        """The parts of the name of each column, as they are shown."""
        return [heading(name) for name in self.columns]


@cache
def published() -> dict[str, list[dict[str, Any]]]:
    """The rows of the papers' tables by task: paper, table, model, backbone, training data, units and values.

    Values are the printed texts by metric. Units are one of percent, share, edges and tau, for all metrics of a row or
    by metric. A backbone that the paper does not state is "unstated".
    """
    rows: dict[str, list[dict[str, Any]]] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return rows


def unit_of(published_row: Mapping[str, Any], name: str) -> str:
    """The unit of a value of a published row."""
    units: str | dict[str, str] = published_row["units"]
    return units if isinstance(units, str) else units[name]


@cache
def units(task: str) -> dict[str, str]:
    """The units of the papers' tables by the last part of a metric's name."""
    return {name.rpartition("/")[2]: unit_of(row, name) for row in published().get(task, ()) for name in row["values"]}


def heading(name: str) -> list[str]:
    """The parts of a metric's name; `accuracy` at the end is left out."""
    parts = name.removesuffix("/accuracy").split("/")
    return [SHORT.get(part, part.replace("recall@", "R@").replace("_", " ")) for part in parts]


def is_share(name: str) -> bool:
    """True for metrics from 0 to 1."""
    return not PLAIN.search(name.rpartition("/")[2])


def show(task: str, name: str, value: float | None) -> str:
    """A metric as text, in the unit of the papers' tables; shares that no paper prints are in percent."""
    if value is None:
        return "–"
    unit = units(task).get(name.rpartition("/")[2], "percent" if is_share(name) else "")
    if unit == "percent":
        return f"{100 * value:.1f}"
    return f"{value:.4f}" if unit == "share" else f"{value:.3f}"


def build_table(task: str, results: Results) -> Table:
    """The table of a task: the metrics of its published rows, of any data set, else its first ones. Our rows are first.

    The best of our models is marked in each column of shares, if there are several models.
    """
    ours = {label: tasks[task]["metrics"] for label, tasks in results.items() if "metrics" in tasks.get(task, {})}
    rows = published().get(task, [])
    found = list(dict.fromkeys(name for metrics in ours.values() for name in metrics))
    in_papers = {name for row in rows for name in row["values"]}
    same = [name for name in found if kind_of(name) in map(kind_of, in_papers)]
    columns = sorted(same, key=lambda name: name not in in_papers) or found[:MAX_COLUMNS]
    lines = []
    for label, metrics in ours.items():
        best = [len(ours) > 1 and is_share(name) and is_best(name, metrics, ours.values()) for name in columns]
        cells = tuple(cell(task, name, metrics.get(name), mark) for name, mark in zip(columns, best, strict=True))
        lines.append(TableLine(name=label, source="this evaluation", is_ours=True, cells=cells))
    lines += [
        TableLine(
            name=row["model"],
            source=source_of(row),
            is_ours=False,
            cells=tuple(published_cell(row, name) for name in columns),
        )
        for row in rows
        if row["values"].keys() & set(columns)
    ]
    return Table(columns=tuple(columns), lines=tuple(lines))


def source_of(row: Mapping[str, Any]) -> str:
    """Paper, table, backbone and training data of a published row."""
    backbone = "backbone unstated" if row["backbone"] == "unstated" else row["backbone"]
    return f"{row['paper']}, table {row['table']}, {backbone}, {row['data']}"


def is_best(name: str, metrics: Mapping[str, float | None], others: Any) -> bool:
    """True if no model has a larger value."""
    value = metrics.get(name)
    return value is not None and all((other.get(name) or 0) <= value for other in others)


def cell(task: str, name: str, value: float | None, best: bool = False) -> Cell:
    """The cell of a metric of ours."""
    share = value if value is not None and is_share(name) and 0 <= value <= 1 else None
    return Cell(text=show(task, name, value), share=share, is_best=best)


def published_cell(row: Mapping[str, Any], name: str) -> Cell:
    """The cell of a published value, as it is printed."""
    text = row["values"].get(name)
    if text is None:
        return Cell(text="–")
    scale = {"percent": 0.01, "share": 1.0}.get(unit_of(row, name))
    return Cell(text=text, share=None if scale is None else scale * float(text))


def markdown(tasks: Sequence[str], results: Results, failed: Mapping[str, str]) -> str:
    """The summary in Markdown: for each task a table, with missing parts below it. `failed`: errors of other models."""
    parts = ["# Evaluation", "", UNITS]
    parts += (
        ["", *(f"- {escape(f'{label} is not evaluated: {why}')}" for label, why in failed.items())] if failed else []
    )
    for task in tasks:
        table = build_table(task, results)
        parts += ["", f"## {TASKS[task].title}", ""]
        if table.lines:
            names = [" ".join(words) for words in table.headings]
            parts += [row("model", "source", *names), row("---", "---", *["---:"] * len(names))]
            parts += [
                row(line.name, line.source, *(f"**{cell.text}**" if cell.is_best else cell.text for cell in line.cells))
                for line in table.lines
            ]
        notes = notes_of(task, results)
        parts += ["", *(f"- {escape(note)}" for note in notes)] if notes else []
    return "\n".join(parts) + "\n"


def notes_of(task: str, results: Results) -> list[str]:
    """Sentences on missing data, skipped examples and contamination. A note that holds for all models is given once."""
    found = {label: notes_of_model(tasks.get(task, {})) for label, tasks in results.items()}
    by_note: dict[str, list[str]] = {}
    for label, notes in found.items():
        for note in dict.fromkeys(notes):
            by_note.setdefault(note, []).append(label)
    return [note if len(labels) == len(found) else f"{', '.join(labels)}: {note}" for note, labels in by_note.items()]


def notes_of_model(content: Mapping[str, Any]) -> list[str]:
    """The notes on the result of one model."""
    notes = [f"not evaluated: {content['error']}"] if "error" in content else []
    notes += [f"{key} is not evaluated: {reason}" for key, reason in missing_parts(content).items()]
    notes += [f"{n} skipped: {reason}" for reason, n in content.get("skipped", {}).items()]
    if "contamination_error" in content:
        notes.append(content["contamination_error"])
    if copies := content.get("contamination"):
        notes.append(contamination_text(copies))
    return notes


def missing_parts(content: Mapping[str, Any]) -> dict[str, str]:
    """The parts or data sets of a task that were not evaluated, with the reason."""
    parts = map(content.get("details", {}).get, ("missing", "malformed"))
    return {name: reason for part in parts if isinstance(part, Mapping) for name, reason in part.items()}


def contamination_text(copies: Mapping[str, int]) -> str:
    """The counts of evaluation images among the training images as a sentence."""
    return (
        f"{copies['any']} of {copies['n_images']} evaluation images appear among {copies['n_training']} training images: "
        f"{copies['by_url']} by URL ({copies['n_with_url']} have one), {copies['by_hash']} by file hash, "
        f"{copies['by_picture']} by perceptual hash"
    )


def escape(text: str) -> str:
    """Text for one cell or item of Markdown."""
    return " ".join(re.sub(r"([|<>*_`\[\]])", r"\\\1", text).split())


def row(*cells: str) -> str:
    """A row of a Markdown table."""
    marks = re.compile(r"^(-+:?|\*\*.*\*\*)$")
    return "| " + " | ".join(text if marks.match(text) else escape(text) for text in cells) + " |"
