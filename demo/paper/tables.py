"""The tables of the study: rows of ours with intervals, beside the printed ones."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from demo.paper.results import CONDITIONS, Row, Rows, chance_of, estimate
from demo.paper.statistics import Estimate
from trainer.analyses import RELATION_NAMES
from trainer.evaluation.report.tables import heading, is_share, published, show, source_of
from trainer.evaluation.tasks.sugarcrepe import FILES
from trainer.models.registry import MODELS

PRINTED: Final = Path(__file__).with_name("printed.csv")
ONE_SET: Final = ("coco", "scenes")
"""Data sets that headings do not name."""
PRINTED_AS: Final = {"chains": "hierarcaps"}
"""The papers' task by ours, where their names differ."""
ACCURACY: Final = "classification:scenes/accuracy"
MAIN: Final = {
    ACCURACY: "zero-shot accuracy",
    "hierarchical:scenes/TIE": "TIE ↓",
    "retrieval:coco/text_to_image/recall@5": "text → image R@5",
    "retrieval:coco/image_to_text/recall@5": "image → text R@5",
    "vlchecklist:object": "VL-CheckList object",
    "sugarcrepe:overall": "SugarCrepe",
    "order:cross_image/order": "box > image",
    "order:cross_text/order": "phrase > caption",
}
"""Headings of the main table by metric."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """A table: its columns TASK:METRIC with headings, and the papers' metric of each column that has one, TASK:METRIC."""

    title: str
    columns: Mapping[str, str]
    papers: Mapping[str, str]
    table: str = "main"
    """The rows: those of the variants' table, and the main rows with a printed value in it."""


def design(title: str, task: str, metrics: Sequence[str], papers: Mapping[str, str] | None = None) -> Design:
    """A table of the main rows on one task, whose columns have the papers' names unless `papers` has others."""
    named = {metric: metric for metric in metrics} if papers is None else papers
    return Design(
        title=title,
        columns={f"{task}:{metric}": column_heading(metric) for metric in metrics},
        papers={f"{task}:{metric}": f"{task}:{name}" for metric, name in named.items()},
    )


def column_heading(metric: str) -> str:
    """The heading of a metric: without the name of a single data set, and with the relation in words."""
    first, *others = heading(metric)
    relation = RELATION_NAMES.get(first.replace(" ", "_"))
    words = [relation, *others] if relation else others if first in ONE_SET and others else [first, *others]
    return " ".join(words)


RELATIONS: Final = ("text_image", "box_text_image", "cross_image", "cross_text")
HIERARCHY: Final = ("TIE", "LCA", "J", "P_H", "R_H")
RECALLS: Final = [f"coco/{way}/recall@{k}" for way in ("text_to_image", "image_to_text") for k in (1, 5, 10)]
UNSEEN: Final = [f"{part}/{name}" for name in ("replace_obj", "replace_att") for part in ("seen", "unseen")]
OBJECTS: Final = [f"object/{name}" for name in ("center", "mid", "margin", "large", "medium", "small")]
CHAINS: Final = {f"scenes/path/{name}": f"path/{name}" for name in ("precision", "recall", "tau")}
ENTAILMENT: Final = [f"{name}/{kind}" for kind in ("auc", "ap", "pep_auc", "pep_ap") for name in RELATIONS]

DESIGNS: Final = (
    Design(title="Main results", columns=MAIN, papers={}),
    design(
        "Zero-shot classification (papers: ImageNet)",
        "classification",
        ("scenes/accuracy", "unseen_style/accuracy"),
        {"scenes/accuracy": "imagenet/accuracy"},
    ),
    design("Retrieval", "retrieval", RECALLS),
    design(
        "Hierarchical classification",
        "hierarchical",
        [f"scenes/{name}" for name in HIERARCHY],
        {f"scenes/{name}": name for name in HIERARCHY},
    ),
    design(
        "VL-CheckList", "vlchecklist", [*OBJECTS, "object", "attribute/color", "attribute/size", "relation/spatial"]
    ),
    design("SugarCrepe", "sugarcrepe", (*FILES, "overall")),
    design("Pairs that training did not show", "sugarcrepe", UNSEEN, {}),
    design("Order: general points nearer the root", "order", [f"{name}/order" for name in RELATIONS], {}),
    design("Entailment: angle minus aperture, and PEP", "order", ENTAILMENT, {}),
    design("Chains of four captions (papers: HierarCaps)", "chains", list(CHAINS), CHAINS),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A metric of a row as text, with its estimate."""

    text: str
    estimate: Estimate | None = None
    is_best: bool = False
    """True for the best mean, and for those that the interval of the paired difference does not separate from it."""
    printed: str = ""
    """The value of the paper's table."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a table."""

    name: str
    source: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: rows of ours by condition, and the papers' rows."""

    title: str
    headings: Sequence[str]
    columns: Sequence[str]
    groups: Mapping[str, Sequence[Line]]
    papers: Sequence[Line] = ()


def tables(rows: Rows) -> list[Table]:
    """All tables with at least one row."""
    found = [build_table(plan, rows) for plan in DESIGNS] + [build_ablation(name, rows) for name in printed()]
    return [table for table in found if any(table.groups.values())]


def build_table(plan: Design, rows: Rows) -> Table:
    """A table of the main rows, with those of the papers."""
    groups = {}
    for suffix, about in CONDITIONS.values():
        keys = [key for key, row in rows.items() if row.variant.table == "main" and key == row.variant.row + suffix]
        groups[about] = lines({key: rows[key] for key in keys}, list(plan.columns))
    return Table(
        title=plan.title,
        headings=list(plan.columns.values()),
        columns=list(plan.columns),
        groups=groups,
        papers=paper_lines(plan, rows),
    )


@cache
def printed() -> dict[str, dict[str, dict[str, str]]]:
    """The printed values of tables of ablations, by title, TASK:METRIC and row; empty texts where nothing is printed."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    with PRINTED.open(newline="", encoding="utf-8") as file:
        for entry in csv.DictReader(file):
            pairs = (text.partition("=") for text in entry["rows"].split())
            found.setdefault(entry["title"], {})[entry["metric"]] = {key: value for key, _, value in pairs}
    return found


def build_ablation(title: str, rows: Rows) -> Table:
    """A table of ablations, with the printed value beside each of ours."""
    by_metric = printed()[title]
    keys = list(dict.fromkeys(key for values in by_metric.values() for key in values if key in rows))
    made = lines({key: rows[key] for key in keys}, list(by_metric), by_metric)
    headings = [MAIN.get(name) or column_heading(name.partition(":")[2]) for name in by_metric]
    return Table(title=title, headings=headings, columns=list(by_metric), groups={CONDITIONS["crops"][1]: made})


def lines(rows: Rows, columns: Sequence[str], beside: Mapping[str, Mapping[str, str]] | None = None) -> list[Line]:
    """The lines of rows, with the best of each column marked, and a line with the chance levels."""
    best = {name: best_of(rows, name) for name in columns}
    made = []
    for key, row in rows.items():
        cells = [our_cell(name, row, best[name], (beside or {}).get(name, {}).get(key, "")) for name in columns]
        made.append(Line(name=row.variant.title, source=f"{len(row.results)} seeds", cells=tuple(cells)))
    levels = [chance_of(rows, name) for name in columns]
    if any(level is not None for level in levels):
        cells = [Cell(text=shown(name, level)) for name, level in zip(columns, levels, strict=True)]
        made.append(Line(name="chance", source="", cells=tuple(cells)))
    return made


def shown(metric: str, value: float | None) -> str:
    """A value of TASK:METRIC as text."""
    task, _, name = metric.partition(":")
    return show(PRINTED_AS.get(task, task), name, value)


def best_of(rows: Rows, metric: str) -> Row | None:
    """The row with the best mean of a metric: the smallest of TIE and LCA, else the largest."""
    sign = 1 if is_share(metric) or metric.endswith("tau") else -1
    found = [(sign * sum(values) / len(values), row) for row in rows.values() if (values := row.values(metric))]
    return max(found, key=lambda pair: pair[0])[1] if len(found) > 1 else None


def our_cell(metric: str, row: Row, best: Row | None, beside: str) -> Cell:
    """The cell of a metric TASK:METRIC."""
    found = estimate(row, metric)
    if found is None:
        return Cell(text="–", printed=beside)
    gap = estimate(row, metric, best) if best else None
    half = f" ± {shown(metric, found.half())}" if found.n_seeds > 1 else ""
    mark = "" if found.has_items else "ˢ"
    is_best = row is best or (gap is not None and gap.n_seeds > 1 and gap.side == 0)
    return Cell(text=f"{shown(metric, found.value)}{half}{mark}", estimate=found, is_best=is_best, printed=beside)


def paper_lines(plan: Design, rows: Rows) -> list[Line]:
    """The papers' rows of the models of the study that have a value in one of the columns."""
    models = {MODELS[row.variant.model].title for row in rows.values()}
    tasks = dict.fromkeys(name.partition(":")[0] for name in plan.papers.values())
    found = []
    names = [plan.papers.get(name, "").partition(":")[2] for name in plan.columns]
    for entry in [r for task in tasks for r in published().get(PRINTED_AS.get(task, task), ()) if r["model"] in models]:
        cells = tuple(Cell(text=entry["values"].get(name, "–")) for name in names)
        if any(cell.text != "–" for cell in cells):
            found.append(Line(name=entry["model"], source=source_of(entry), cells=cells))
    return found
