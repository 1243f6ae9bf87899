"""The tables of the study: rows of ours with deviations and marked differences, above the rows of the papers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from demo.paper.results import Row
from demo.paper.statistics import Estimate, Interval, difference, estimate
from trainer.analyses import RELATION_NAMES
from trainer.evaluation.report.tables import heading, published, show, source_of
from trainer.evaluation.tasks.sugarcrepe import FILES
from trainer.models.registry import MODELS

REFERENCE: Final = "hycoclip"
"""Row that the others are compared with."""
RELATIONS: Final = ("text_image", "box_text_image", "cross_image", "cross_text")
OBJECTS: Final = ("center", "mid", "margin", "large", "medium", "small")
ONE_SET: Final = ("coco", "concepts")
"""Data sets that headings do not name."""
SHARE_OF_REPLICATES: Final = {"mean": 1.0, "auc": 0.2, "ap": 0.2}
"""Replicates of the bootstrap by reduction: those of ranked pairs cost more."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """A table: its columns TASK:METRIC, and the papers' metric of each column that has one, as TASK:METRIC."""

    title: str
    columns: tuple[str, ...]
    papers: Mapping[str, str]
    headings: tuple[str, ...] = ()
    """Headings of the columns; empty: those of the metrics."""


def design(
    title: str,
    task: str,
    metrics: Sequence[str],
    papers: Mapping[str, str] | None = None,
    headings: tuple[str, ...] = (),
) -> Design:
    """A table of one task, whose columns have the papers' names unless `papers` has others."""
    named = {metric: metric for metric in metrics} if papers is None else papers
    return Design(
        title=title,
        columns=tuple(f"{task}:{metric}" for metric in metrics),
        papers={f"{task}:{metric}": f"{task}:{name}" for metric, name in named.items()},
        headings=headings,
    )


RECALLS: Final = [f"coco/{way}/recall@{k}" for way in ("text_to_image", "image_to_text") for k in (5, 10)]
HIERARCHY: Final = ("TIE", "LCA", "J", "P_H", "R_H")

MAIN: Final = {
    "zero-shot": "classification:concepts/accuracy",
    "text to image recall@10": "retrieval:coco/text_to_image/recall@10",
    "TIE ↓": "hierarchical:concepts/TIE",
    "VL-CheckList object": "vlchecklist:object",
    "box > image order": "order:cross_image/order",
    "phrase > caption order": "order:cross_text/order",
}
"""Metrics of the main table by heading."""

DESIGNS: Final = (
    Design(title="Main results", columns=tuple(MAIN.values()), papers={}, headings=tuple(MAIN)),
    design(
        "Zero-shot classification",
        "classification",
        ("concepts/accuracy", "unseen_style/accuracy"),
        {"concepts/accuracy": "imagenet/accuracy"},
        ("concepts (papers: ImageNet)", "unseen art style"),
    ),
    design("Retrieval", "retrieval", RECALLS),
    design(
        "Hierarchical classification",
        "hierarchical",
        [f"concepts/{name}" for name in HIERARCHY],
        {f"concepts/{name}": name for name in HIERARCHY},
        ("TIE ↓", "LCA ↓", *HIERARCHY[2:]),
    ),
    design(
        "VL-CheckList",
        "vlchecklist",
        [*(f"object/{name}" for name in OBJECTS), "object", "attribute/color", "attribute/size", "relation/spatial"],
    ),
    design("SugarCrepe", "sugarcrepe", (*FILES, "overall")),
    design("Order: general points nearer the root", "order", [f"{name}/order" for name in RELATIONS], {}),
    design(
        "Entailment by angle minus aperture",
        "order",
        [f"{name}/{kind}" for kind in ("auc", "ap") for name in RELATIONS],
        {},
    ),
    design(
        "Entailment by PEP", "order", [f"{name}/{kind}" for kind in ("pep_auc", "pep_ap") for name in RELATIONS], {}
    ),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A metric of a row, and its difference from the reference row; None for the reference itself."""

    text: str
    estimate: Estimate | None
    interval: Interval | None

    @property
    def mark(self) -> str:
        """Sign of a difference beyond its interval: + or -."""
        return {1: "+", -1: "-"}.get(self.interval.side, "") if self.interval else ""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a table."""

    name: str
    source: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its headings, our rows and the papers' rows."""

    design: Design
    headings: tuple[str, ...]
    ours: tuple[Line, ...]
    papers: tuple[Line, ...]


def build_table(plan: Design, rows: Mapping[str, Row], n_replicates: int) -> Table:
    """Fill a table with the results of the rows, and a row with the chance levels. Without replicates: no differences."""
    ours = tuple(
        Line(
            name=row.variant.title,
            source="this study",
            cells=tuple(our_cell(name, row, rows.get(REFERENCE), n_replicates) for name in plan.columns),
        )
        for row in rows.values()
    )
    chance = Line(name="chance", source="", cells=tuple(chance_cell(name, rows) for name in plan.columns))
    return Table(
        design=plan,
        headings=plan.headings or tuple(map(column_heading, plan.columns)),
        ours=(*ours, chance),
        papers=tuple(paper_lines(plan, rows)),
    )


def column_heading(name: str) -> str:
    """The heading of a metric TASK:METRIC: without the name of a single data set, and with the relation in words."""
    first, *others = heading(name.partition(":")[2])
    relation = RELATION_NAMES.get(first.replace(" ", "_"))
    return " ".join([relation, *others] if relation else others if first in ONE_SET and others else [first, *others])


def chance_cell(name: str, rows: Mapping[str, Row]) -> Cell:
    """The chance level of a metric TASK:METRIC; the evaluations of all rows have the same."""
    task, _, metric = name.partition(":")
    found = next((level for row in rows.values() if (level := row.chance(name)) is not None), None)
    return Cell(text=show(task, metric, found), estimate=None, interval=None)


def our_cell(name: str, row: Row, reference: Row | None, n_replicates: int) -> Cell:
    """The cell of a metric TASK:METRIC."""
    values = row.metric(name)
    if not values:
        return Cell(text="–", estimate=None, interval=None)
    task, _, metric = name.partition(":")
    found = estimate(values)
    text = show(task, metric, found.mean)
    text += f" ± {show(task, metric, found.deviation)}" if found.deviation is not None else ""
    items, others = row.items_of(name), reference.items_of(name) if reference and reference is not row else []
    if not items or not others or not n_replicates:
        return Cell(text=text, estimate=found, interval=None)
    n = max(1, round(n_replicates * SHARE_OF_REPLICATES[items[0].reduction]))
    return Cell(text=text, estimate=found, interval=difference(items, others, n))


def paper_lines(plan: Design, rows: Mapping[str, Row]) -> list[Line]:
    """The papers' rows of the models of the study that have a value in one of the columns."""
    models = {MODELS[row.variant.model].title for row in rows.values()}
    tasks = dict.fromkeys(name.partition(":")[0] for name in plan.papers.values())
    lines = []
    for entry in [entry for task in tasks for entry in published().get(task, ()) if entry["model"] in models]:
        cells = tuple(paper_cell(entry, plan.papers.get(name, "")) for name in plan.columns)
        if any(cell.text != "–" for cell in cells):
            lines.append(Line(name=entry["model"], source=source_of(entry), cells=cells))
    return lines


def paper_cell(entry: Mapping[str, Any], name: str) -> Cell:
    """The printed value of a metric TASK:METRIC in a published row."""
    return Cell(text=entry["values"].get(name.partition(":")[2], "–"), estimate=None, interval=None)
