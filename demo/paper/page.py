"""Write the page of the study: index.html and paper.md, each without external files, and paper.json with all numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from demo.paper.plan import Run
from demo.paper.results import VERDICTS, Judgement, Row
from demo.paper.sizes import Size
from demo.paper.statistics import Interval, estimate
from demo.paper.tables import REFERENCE, Table
from hypergrit_common.disk import atomic_write
from hypergrit_common.html import render_page
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.plots import COLORS, axes
from trainer.evaluation.plots import draw_bars
from trainer.evaluation.report import page as evaluation_page
from trainer.evaluation.report.page import Details, inline_file
from trainer.evaluation.report.tables import escape, is_share, show
from trainer.evaluation.report.tables import row as markdown_row

FOLDER: Final = Path(__file__).resolve().parent
PICTURES: Final = {"norms": None, "order": "roc", "factors": None}
"""Tasks whose figures are shown, of one figure only if it is named."""
WALKS: Final = ("traversal", "interpolation")
PLOTS: Final = {
    "accuracy.png": "Zero-shot accuracy: means over seeds",
    "differences.png": "The claims' differences with their 95 % intervals; those of TIE, which is not a share, are omitted",
}
"""Plots of a study with their captions; one without claims has the first alone."""
LEGEND: Final = """\
All rows see the same image-text pairs; rows with boxes see crops and phrases in addition. Tables have means ± deviations
over seeds. ↓: lower is better. Rows of papers are as printed, on other data."""
MARKS_LEGEND: Final = """\
+ and - mark differences from {reference} whose 95 % interval of a paired bootstrap over held-out images and seeds
excludes 0."""
VERDICTS_LEGEND: Final = """\
Each claim compares two rows, or one row with chance (50 %). It is shown or contradicted if the 95 % interval of
the difference lies on one side of 0, and otherwise not shown; "at chance": neither row differs from chance. Claims
that something does not help are shown by a loss alone. Not measured: a row is not part of this size. Of many
intervals, a few miss 0 by chance."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that the page shows."""

    name: str
    size: Size
    rows: Mapping[str, Row]
    tables: Sequence[Table]
    judgements: Sequence[Judgement]
    facts: Mapping[str, Any]
    """Command, machine, versions and times."""


def write_study(study: Study, folder: Path) -> None:
    """Write index.html, paper.md, paper.json and the plots to `folder`."""
    plots = folder / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    draw_accuracy(study.rows, "classification:concepts/accuracy", plots / "accuracy.png")
    if study.size.has_claims:
        draw_differences(study.judgements, plots / "differences.png")
    write_object(as_json(study), folder / "paper.json")
    for name, text in (("index.html", html(study, folder)), ("paper.md", markdown(study))):
        with atomic_write(folder / name) as draft:
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")


def html(study: Study, folder: Path) -> str:
    """The page. The template escapes all texts."""
    return render_page(
        FOLDER,
        "page.html",
        style=Markup(Path(evaluation_page.FOLDER / "page.css").read_text(encoding="utf-8")),
        study=study,
        legend=legend(study),
        verdicts_legend=VERDICTS_LEGEND,
        counts=counts(study.judgements),
        claims=[(entry, shown(entry.claim.metric, entry.interval), verdict(entry)) for entry in study.judgements],
        reference=reference(study),
        shown=shown,
        plots=[(inline_file(folder / "plots" / name), title) for name, title in PLOTS.items()],
        models=[
            (row.variant.title, Markup(path.read_text("utf-8")))
            for row in study.rows.values()
            if (path := pictures_path(folder / "results", row.variant.key)).is_file()
        ],
    )


def counts(judgements: Sequence[Judgement]) -> dict[str, int]:
    """Number of claims by verdict."""
    found = Counter(entry.verdict for entry in judgements)
    return {verdict: found[verdict] for verdict in VERDICTS}


def legend(study: Study) -> str:
    """The sentences that explain the tables."""
    title = reference(study)
    return f"{LEGEND} {MARKS_LEGEND.format(reference=title)}" if study.size.has_claims and title else LEGEND


def reference(study: Study) -> str:
    """The title of the row that the others are compared with; empty if it is not part of the study."""
    return study.rows[REFERENCE].variant.title if REFERENCE in study.rows else ""


def verdict(entry: Judgement) -> str:
    """The verdict, and whether both rows are at chance."""
    return entry.verdict + ", at chance" * entry.is_at_chance


def shown(name: str, interval: Interval | None) -> str:
    """A difference of a metric TASK:METRIC with its interval, in percentage points or in the unit of the metric."""
    if interval is None:
        return "–"
    task, _, metric = name.partition(":")
    value, low, high = (show(task, metric, number) for number in interval)
    unit = " points" if is_share(metric) and "." in value and len(value.rpartition(".")[2]) == 1 else ""
    return f"{value} [{low}, {high}]{unit}"


def pictures_path(results: Path, key: str) -> Path:
    """The file with the pictures of a row, a part of the page."""
    return results / f"{key}.html"


def write_pictures(run: Run, sets: Path) -> None:
    """Write the part of the page with figures and walks of an evaluated run. `sets` has the images of the walks."""
    contents = {task: read_object(run.evaluated / f"{task}.json") for task in (*PICTURES, *WALKS)}
    figures = [
        {"title": figure["title"], "source": inline_file(run.evaluated / figure["file"])}
        for task, only in PICTURES.items()
        for figure in contents[task].get("figures", ())
        if only is None or figure["file"] == f"{task}-{only}.png"
    ]
    walks = {task: contents[task].get("details", {}).get("pexels", []) for task in WALKS}
    drawn = {task: Details(sets).draw(entries) for task, entries in walks.items() if entries}
    path = pictures_path(run.result.parent, run.variant.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_text(render_page(FOLDER, "pictures.html", figures=figures, walks=drawn), encoding="utf-8")


def markdown(study: Study) -> str:
    """The tables and claims in Markdown."""
    facts = [f"- {escape(name)}: {escape(str(value))}" for name, value in study.facts.items()]
    parts = [f"# The papers in miniature: {escape(study.name)}", "", escape(study.size.about), "", *facts]
    if not study.size.has_claims:
        parts += ["", "No claims: the trainings are too short."]
    parts += ["", escape(legend(study))]
    for table in study.tables:
        parts += ["", f"## {table.design.title}", "", markdown_row("row", "source", *table.headings)]
        parts.append(markdown_row("---", "---", *["---:"] * len(table.headings)))
        for line in (*table.ours, *table.papers):
            cells = [f"{cell.text} {cell.mark}".strip() for cell in line.cells]
            parts.append(markdown_row(line.name, line.source, *cells))
    if study.size.has_claims:
        parts += ["", "## Claims", "", escape(VERDICTS_LEGEND), ""]
        parts += [markdown_row("paper", "claim", "rows", "difference", "verdict"), "|---|---|---|---|---|"]
        for entry in study.judgements:
            claim, difference = entry.claim, shown(entry.claim.metric, entry.interval)
            name = f"{claim.paper}, {claim.source}"
            parts.append(markdown_row(name, f"{claim.text} ({claim.metric})", claim.rows, difference, verdict(entry)))
    return "\n".join(parts) + "\n"


def as_json(study: Study) -> dict[str, Any]:
    """All numbers of the study."""
    return {
        "study": study.name,
        "size": asdict(study.size),
        "facts": dict(study.facts),
        "rows": {key: {"title": row.variant.title, "seeds": len(row.results)} for key, row in study.rows.items()},
        "tables": [
            {
                "title": table.design.title,
                "rows": {
                    line.name: {
                        name: {
                            "mean": cell.estimate.mean,
                            "deviation": cell.estimate.deviation,
                            "difference": cell.interval._asdict() if cell.interval else None,
                        }
                        for name, cell in zip(table.design.columns, line.cells, strict=True)
                        if cell.estimate
                    }
                    for line in table.ours
                },
            }
            for table in study.tables
        ],
        "claims": [
            asdict(entry.claim)
            | {"verdict": entry.verdict, "is_at_chance": entry.is_at_chance}
            | {"difference": entry.interval._asdict() if entry.interval else None}
            for entry in study.judgements
        ],
    }


COLOR_OF: Final = {"shown": COLORS[2], "not shown": COLORS[5], "contradicted": COLORS[1]}


def draw_accuracy(rows: Mapping[str, Row], name: str, path: Path) -> None:
    """Draw the accuracy of each row, with a mark at chance level."""
    bars = {}
    for row in rows.values():
        if values := row.metric(name):
            bars[row.variant.title] = (estimate(values).mean, row.chance(name) or 0.0)
    draw_bars(bars, path)


def draw_differences(judgements: Sequence[Judgement], path: Path) -> None:
    """Draw the difference of each measured claim in percentage points with its interval, in the claim's direction."""
    shown = [entry for entry in judgements if entry.interval and is_share(entry.claim.metric)][::-1]
    with axes(path, 9, 1 + 0.26 * len(shown)) as ax:
        for place, entry in enumerate(shown):
            assert entry.interval is not None
            sign = 1 if entry.claim.direction == "above" else -1
            low, high = sorted((100 * sign * entry.interval.low, 100 * sign * entry.interval.high))
            color = COLOR_OF[entry.verdict]
            ax.plot([low, high], [place, place], color=color, lw=2)
            ax.plot([100 * sign * entry.interval.value], [place], "o", color=color, ms=5)
        names = [f"{entry.claim.paper}: {entry.claim.text}".replace("$", r"\$") for entry in shown]
        ax.set_yticks(range(len(shown)), names, fontsize=7)
        ax.axvline(0, color="#888888", lw=1)
        ax.set(xlabel="difference in percentage points; right of 0: as claimed")
