"""Write the page of the study: index.html and paper.md, each without external files, and paper.json with all numbers."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from markupsafe import Markup

from demo.paper.extra import read_entries
from demo.paper.results import (
    CONDITIONS,
    COUNTED,
    FILE,
    VERDICTS,
    Claim,
    Judgement,
    Row,
    Rows,
    chance_of,
    claims,
    estimate,
    judge,
    n_false,
    read_rows,
    verdict,
)
from demo.paper.run import PICTURES, WALKS
from demo.paper.sizes import Size, rows_of
from demo.paper.statistics import Estimate
from demo.paper.tables import MAIN, Table, shown, tables
from demo.train_demo_data import ROOT
from hypergrit_common.config import flatten, runtime_keys
from hypergrit_common.disk import atomic_write
from hypergrit_common.html import render_page
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.text import shortened
from trainer.config import TrainConfig, as_dict, load_config
from trainer.evaluation.report import page as evaluation_page
from trainer.evaluation.report.page import Details, inline_file
from trainer.evaluation.report.tables import escape, is_share
from trainer.evaluation.report.tables import row as markdown_row

FOLDER: Final = Path(__file__).resolve().parent
OPENING: Final = (
    "MERU retrieves images better than CLIP",
    "HyCoCLIP classifies better than CLIP",
    "PHyCLIP classifies better than HyCoCLIP",
)
"""The claims whose differences open the page."""
ENTAILMENT: Final = (
    ("Entailment raises HyCoCLIP's order of phrases and captions", "order:cross_text/order", 0.05),
    ("Entailment raises HyCoCLIP's tau of chains", "chains:scenes/path/tau", 0.02),
)
"""Text, metric and margin of the comparisons of HyCoCLIP with itself without entailment that follow them."""
HEADINGS: Final = {
    "holds": "Hold here; claims of no loss and of no difference within their margin",
    "reversed": "The opposite is shown",
    "absent": "A difference as large as the margin is excluded",
    "mixed": "The verdict depends on the tower",
    "undecided": "Undecided: neither a difference nor its absence is shown",
    "not testable": "Not testable: a row is at chance",
}
LEGEND: Final = """\
Tables have means ± half of the 95 % interval over seeds and held-out items (crossed, Satterthwaite); ˢ: over seeds alone,
because the metric is no mean of items or its items are not stored. Bold: the best, and rows that the paired interval does
not separate from it, also where failed seeds make that interval wide. ↓: lower is better. Rows of papers are as printed, on
photographs. Rows of ablations, controls, true boxes and longer trainings have the rate and the steps of their model, also
with other sizes of a batch; PHyCLIP's with up to 64 factors have their own."""
SKIPPED: Final = {"output", "seed", "data.seed", "data.features", "data.shards", "model_name"}
"""Settings that are not compared with the papers' jobs."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that the page shows."""

    name: str
    size: Size
    rows: Rows
    tables: Sequence[Table]
    judgements: Sequence[Judgement]
    answer: Sequence[str]
    notes: Sequence[str]


def write_page(name: str, size: Size, out: Path) -> Path:
    """Write index.html, paper.md and paper.json from the results and pictures in `out`. Return the path of the page.

    Raises UserError for results that cannot be read, or whose items differ.
    """
    planned = [(variant, size.seeds_of(variant)) for variant in rows_of(size)]
    rows = read_rows(out / "results", planned)
    judgements = [judge(claim, rows) for claim in claims()] if size.has_claims else []
    study = Study(
        name=name,
        size=size,
        rows=rows,
        tables=tables(rows),
        judgements=judgements,
        answer=answer(judgements, rows) if judgements else [],
        notes=notes(rows, {variant.key: n for variant, n in planned}, size),
    )
    write_object(as_json(study), out / "paper.json")
    for file, text in (("index.html", html(study, out)), ("paper.md", markdown(study))):
        with atomic_write(out / file) as draft:
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    return out / "index.html"


def notes(rows: Rows, planned: Mapping[str, int], size: Size) -> list[str]:
    """Notes on the results: unfinished and collapsed runs, choices at the edge of the grid, and changed claims."""
    made = {key: len(rows[key].results) if key in rows else 0 for key in planned}
    missing = [f"{key} ({made[key]} of {n})" for key, n in planned.items() if made[key] != n]
    facts = {key: [result.facts for result in row.results.values()] for key, row in rows.items()}
    seeds = {
        "The loss or a gradient was not finite in seeds of": {
            key: sum(bool(run.get("collapsed")) for run in runs) for key, runs in facts.items()
        },
        "Single seeds are at chance or below in a metric of the main table whose mean is well above it": {
            key: n_weak_seeds(row) for key, row in rows.items()
        },
    }
    hashes = {run.get("claims") for runs in facts.values() for run in runs} - {None}
    chosen = [runs[0].get("identity", {}) for runs in facts.values()]
    n_steps = sum(run.get("at") == [max(size.steps)] for run in chosen)
    n_rate = sum(run.get("lr") in (min(size.rates), max(size.rates)) for run in chosen)
    found = [f"Not finished: {len(missing)} of {len(planned)} rows: {shortened(missing, 8, ', ')}."] if missing else []
    for text, counts in seeds.items():
        if named := ", ".join(f"{key} ({n} of {len(rows[key].results)})" for key, n in counts.items() if n):
            found.append(f"{text}: {named}.")
    if bound := [key for key, runs in facts.items() if all(map(is_at_bound, runs))]:
        words = f"A learned curvature ends at its lower bound in all seeds of {len(bound)} rows"
        found.append(f"{words}, where 'learned' means 'at the bound': {shortened(bound, 8, ', ')}.")
    if n_steps and len(size.rates) > 1:
        words = f"{n_steps} of {len(chosen)} rows have the largest number of steps that was tried"
        found.append(f"{words}, and {n_rate} the smallest or largest rate: differences may be those of speed.")
    if hashes - {hashlib.sha256(FILE.read_bytes()).hexdigest()}:
        found.append("claims.csv is not the file that was there when the test sets were read.")
    return found


def is_at_bound(run: Mapping[str, Any]) -> bool:
    """True if all curvatures that a run has learned are the least that is allowed."""
    model, found = run.get("settings", {}).get("model", {}), run.get("curvature") or [math.inf]
    is_learned = model.get("curv_learnable", False)
    return is_learned and max(found) <= 1.001 * model["curv_init"] / model["curv_max_ratio"]


def n_weak_seeds(row: Row) -> int:
    """The number of seeds at chance or below in a metric of the main table whose mean is clearly above chance."""
    weak = set[int]()
    for metric in MAIN:
        level, values = row.chance(metric), dict(zip(row.seeds(metric), row.values(metric), strict=True))
        if level is not None and values and fmean(values.values()) > 1.5 * level:
            weak |= {seed for seed, value in values.items() if value <= level}
    return len(weak)


def html(study: Study, out: Path) -> str:
    """The page. The template escapes all texts."""
    papers = [entry for entry in study.judgements if entry.claim.kind != "component"]
    by_verdict: dict[str, list[Judgement]] = defaultdict(list)
    for entry in papers:
        by_verdict[entry.verdict].append(entry)
    return render_page(
        FOLDER,
        "page.html",
        style=Markup(Path(evaluation_page.FOLDER / "page.css").read_text(encoding="utf-8")),
        study=study,
        groups=[(title, by_verdict[key]) for key, title in HEADINGS.items() if by_verdict[key]],
        unmeasured=by_verdict["not measured"],
        components=sorted(
            (entry for entry in study.judgements if entry.claim.kind == "component" and size_of(entry) is not None),
            key=lambda entry: -abs(size_of(entry) or 0),
        ),
        counts=count_by_paper(papers),
        verdicts=[*VERDICTS, "mixed"],
        plots=plots(study.rows),
        conditions=CONDITIONS,
        differences=differences,
        words_of=words_of,
        is_small=is_small,
        legend=LEGEND,
        settings=settings_of(study.rows),
        facts=facts(study.rows),
        pictures=pictures(out / "results" / "pictures", study.rows),
        extra=[entry | {"source": inline_file(entry["figure"])} for entry in read_entries(out)],
    )


def answer(judgements: Sequence[Judgement], rows: Rows) -> list[str]:
    """The first sentences of the page."""
    entries = [entry for entry in judgements if entry.claim.kind != "component"]
    counts = Counter(entry.verdict for entry in entries)
    n_restated = sum(entry.claim.kind == "objective" for entry in entries if entry.verdict == "holds")
    verdicts = [{entry.findings[name].verdict for name in COUNTED} for entry in entries]
    n_opposite = verdicts.count({"holds", "reversed"})
    n_one = sum("holds" in found for entry, found in zip(entries, verdicts, strict=True) if entry.verdict == "mixed")
    n_tests, n_alone, n_expected = n_false(judgements)
    n_resting, n_left = half_margins(entries)
    return [
        *openings(judgements, rows),
        f"Of {len(entries)} claims, {counts['holds']} hold here, of which {n_restated} restate what a loss asks for. "
        f"{counts['reversed']} are reversed, and {counts['absent']} have no difference as large as their margin. The towers "
        f"differ on {counts['mixed']}: {n_one} hold on one, {n_opposite} of these are reversed on the other, and "
        f"{counts['mixed'] - n_one} hold on neither. The others are undecided ({counts['undecided']}), not testable "
        f"({counts['not testable']}) or not measured ({counts['not measured']}). "
        f"{sum('not measured' in found and len(found) > 1 for found in verdicts)} were measured on one tower alone.",
        f"{sum(map(is_small, entries))} that hold or are reversed differ by less than their margin. The verdicts rest on "
        f"{n_tests} tests of level 5 % without correction, {n_alone} of them over seeds alone (ˢ): if no rows differed, on "
        f"average at most {n_expected:.0f} would find a direction. Of {n_resting} that rest on a margin, {n_left} would have "
        "the same verdict with half of it.",
    ]


def openings(judgements: Sequence[Judgement], rows: Rows) -> list[str]:
    """The comparisons that open the page, by tower, as far as they were measured."""
    about: dict[str, Any] = {"paper": "this study", "source": "control", "kind": "component", "direction": "above"}
    about |= {"first": "hycoclip", "second": "hycoclip-no-entailment"}
    entries = [entry for entry in judgements if entry.claim.text in OPENING]
    entries += [judge(Claim(text=text, metric=metric, margin=m, **about), rows) for text, metric, m in ENTAILMENT]
    texts = ("; ".join(f"{verdict} on {name}, {gap}" for name, gap, verdict in differences(entry)) for entry in entries)
    return [f"{entry.claim.text}: {text}." for entry, text in zip(entries, texts, strict=True) if text]


def half_margins(entries: Sequence[Judgement]) -> tuple[int, int]:
    """The number of findings that rest on a margin, and of those that have the same verdict with half of it."""
    found = [
        verdict(claim.direction, claim.margin / 2, item.estimate) == item.verdict
        for claim, item in ((entry.claim, entry.findings[name]) for entry in entries for name in COUNTED)
        if item.estimate
        and (
            item.verdict == "absent"
            or (item.verdict == "holds" and claim.direction not in ("above", "below", "differ"))
        )
    ]
    return len(found), sum(found)


def is_small(entry: Judgement) -> bool:
    """True if a difference is shown, but one as large as the margin is excluded on all towers."""
    found = [value for name in COUNTED if (value := entry.findings[name].estimate)]
    has_side = entry.verdict in ("holds", "reversed") and any(value.side for value in found)
    return has_side and all(value.is_within(entry.claim.margin) for value in found)


def size_of(entry: Judgement) -> float | None:
    """The first measured difference of an entry, in the order of the conditions."""
    return next((found.estimate.value for found in entry.findings.values() if found.estimate), None)


def count_by_paper(entries: Sequence[Judgement]) -> dict[str, Counter[str]]:
    """Numbers of claims by paper and verdict."""
    papers = dict.fromkeys(entry.claim.paper for entry in entries)
    return {paper: Counter(entry.verdict for entry in entries if entry.claim.paper == paper) for paper in papers}


def differences(entry: Judgement) -> list[tuple[str, str, str]]:
    """Condition, difference with its interval, and verdict of the measured findings of a claim."""
    return [
        (name, interval(entry.claim.metric, found.estimate), found.verdict)
        for name, found in entry.findings.items()
        if found.estimate
    ]


def words_of(entry: Judgement) -> str:
    """The verdict, with a mark if the difference is smaller than the margin."""
    words = "an effect" if entry.claim.kind == "component" and entry.verdict == "holds" else entry.verdict
    return f"{words}; the difference is less than the margin" if is_small(entry) else words


def interval(metric: str, found: Estimate) -> str:
    """A difference of a metric TASK:METRIC with its interval, in percentage points or in the unit of the metric."""
    value, low, high = (shown(metric, number) for number in (found.value, found.low, found.high))
    unit = " points" if is_share(metric) and "." in value and len(value.rpartition(".")[2]) == 1 else ""
    bounds = f" [{low}, {high}]" if math.isfinite(found.error) else " (one seed)"
    return f"{'+' * (found.value > 0)}{value}{unit}{bounds}{'' if found.has_items else 'ˢ'}"


def plots(rows: Rows) -> list[dict[str, Any]]:
    """Dot plots of the main metrics: for each row, its values by condition."""
    main = dict.fromkeys(row.variant.row for row in rows.values() if row.variant.table == "main")
    found = []
    for metric, title in MAIN.items():
        entries = []
        for name in main:
            keys = {label: f"{name}{suffix}" for label, (suffix, _) in CONDITIONS.items()}
            made = {label: estimate(rows[key], metric) for label, key in keys.items() if key in rows}
            title_of = next(row.variant.title for row in rows.values() if row.variant.row == name)
            entries.append((title_of, {label: value for label, value in made.items() if value is not None}))
        level = chance_of(rows, metric)
        if any(values for _, values in entries):
            found.append({"title": title, **plot(metric, entries, level)})
    return found


def plot(metric: str, entries: Sequence[tuple[str, Mapping[str, Estimate]]], level: float | None) -> dict[str, Any]:
    """Positions of dots and intervals in percent of the width, with the values at both ends of the axis."""
    ends = [(v.low, v.high) if math.isfinite(v.error) else (v.value,) for _, values in entries for v in values.values()]
    low, high = min(map(min, ends)), max(map(max, ends))
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return round(3 + 94 * min(1.0, max(0.0, (value - low) / span)), 2)

    lines = [
        (name, [(label, *map(place, (v.value, v.low, v.high)), interval(metric, v)) for label, v in values.items()])
        for name, values in entries
    ]
    is_inside = level is not None and low <= level <= high
    chance = place(level) if level is not None and is_inside else None
    return {"lines": lines, "low": shown(metric, low), "high": shown(metric, high), "chance": chance}


def settings_of(rows: Rows) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Settings that differ from the papers' jobs: those that all rows share with their values, and the others by row.

    They are read from the resolved configuration of the first result of each row.
    """
    compared = {key: compare(row.variant.model, found) for key, row in rows.items() if (found := resolved(row.results))}
    common = {
        key
        for key in set[str]().union(*compared.values())
        if len({found.get(key, ("", None))[1] for found in compared.values()}) == 1
    }
    shared = [
        (key, ", ".join(sorted({found[key][0] for found in compared.values()})), next(iter(compared.values()))[key][1])
        for key in sorted(common)
    ]
    others = []
    for key, found in compared.items():
        parts = [f"{k} {found[k][1]} (job: {found[k][0]})" for k in sorted(found.keys() - common)]
        others.append((f"{rows[key].variant.title} ({key})", "; ".join(parts) or "nothing else"))
    return shared, others


def resolved(results: Mapping[int, Any]) -> dict[str, Any]:
    """The settings of the first result of a row by their names with dots; empty if it has none."""
    return flatten(next(iter(results.values())).facts.get("settings") or {})


def compare(model: str, settings: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The values of the job of the model's paper and of a row, for all settings in which they differ."""
    paper, free = job_of(model)
    return {
        key: (str(paper.get(key, "–")), str(value))
        for key, value in settings.items()
        if value != paper.get(key) and not any(key == name or key.startswith(f"{name}.") for name in free)
    }


@cache
def job_of(model: str) -> tuple[dict[str, Any], set[str]]:
    """The settings of the job of a model's paper, and the names of those that are not compared."""
    config = load_config([str(ROOT / "jobs" / "train" / f"{model}.yaml")])
    return flatten(as_dict(config)), runtime_keys(TrainConfig, {"model": type(config.model)}) | SKIPPED


def facts(rows: Rows) -> dict[str, str]:
    """Machines, versions and times of all results."""
    made = [result.facts for row in rows.values() for result in row.results.values()]
    times = [found.get("seconds", {}) for found in made]
    minutes = {kind: sum(found.get(kind) or 0 for found in times) / 60 for kind in ("train", "evaluate")}
    return {
        "machines": "; ".join(sorted({found.get("machine", "unknown") for found in made})),
        "versions": "HyperGRIT " + ", ".join(sorted({found.get("version", "unknown") for found in made})),
        "trainings": f"{len(made)}, {minutes['train']:.0f} min in total, each with one thread; not counted: data, choice of rates",
        "evaluations": f"{minutes['evaluate']:.0f} min in total",
    }


def pictures(folder: Path, rows: Rows) -> list[tuple[str, Markup]]:
    """The figures and walks of the rows that have them, each as a part of the page."""
    found = []
    for key, row in rows.items():
        files = {task: folder / key / f"{task}.json" for task in (*PICTURES, *WALKS)}
        made = {task: read_object(path) for task, path in files.items() if path.is_file()}
        figures = [
            {"title": figure["title"], "source": inline_file(folder / key / figure["file"])}
            for task in PICTURES
            for figure in made.get(task, {}).get("figures", ())
        ]
        walks = {task: made.get(task, {}).get("details", {}).get("pexels", []) for task in WALKS}
        drawn = {task: Details(folder).draw(entries) for task, entries in walks.items() if entries}
        if figures or drawn:
            part = render_page(FOLDER, "pictures.html", figures=figures, walks=drawn)
            found.append((row.variant.title, Markup(part)))
    return found


def markdown(study: Study) -> str:
    """The answer, the tables and the claims in Markdown."""
    parts = [f"# The papers in miniature: {escape(study.name)}", "", "Drawn scenes, not photographs.", ""]
    parts += [escape(text) for text in (*study.answer, *study.notes, LEGEND)]
    for table in study.tables:
        parts += ["", f"## {escape(table.title)}", "", markdown_row("row", "source", *table.headings)]
        parts.append(markdown_row("---", "---", *["---:"] * len(table.headings)))
        for about, lines in [*table.groups.items(), ("", table.papers)]:
            parts += [markdown_row(about, "", *[""] * len(table.headings))] if about and lines else []
            for line in lines:
                texts = [(f"{c.text} ({c.printed})" if c.printed else c.text, "**" * c.is_best) for c in line.cells]
                parts.append(markdown_row(line.name, line.source, *[f"{mark}{text}{mark}" for text, mark in texts]))
    if study.judgements:
        parts += ["", "## Claims", "", "| paper | claim | rows | differences | verdict |", "|---|---|---|---|---|"]
    for entry in study.judgements:
        claim = entry.claim
        measured = "; ".join(f"{name}: {text}" for name, text, _ in differences(entry))
        names = (f"{claim.paper}, {claim.source}", f"{claim.text} ({claim.metric})")
        compared = f"{claim.first} - {claim.second or 'chance'}"
        parts.append(markdown_row(*names, compared, measured, words_of(entry)))
    return "\n".join(parts) + "\n"


def as_json(study: Study) -> dict[str, Any]:
    """All numbers of the study."""
    return {
        "study": study.name,
        "size": asdict(study.size),
        "notes": list(study.notes),
        "facts": facts(study.rows),
        "rows": {key: {"title": row.variant.title, "seeds": sorted(row.results)} for key, row in study.rows.items()},
        "metrics": {
            key: {name: numbers(found) for name in metrics_of(row) if (found := estimate(row, name))}
            for key, row in study.rows.items()
        },
        "claims": [
            asdict(entry.claim)
            | {"verdict": entry.verdict}
            | {
                name: {"verdict": found.verdict} | (numbers(found.estimate) if found.estimate else {})
                for name, found in entry.findings.items()
            }
            for entry in study.judgements
        ],
    }


def metrics_of(row: Row) -> list[str]:
    """The metrics of a row, TASK:METRIC."""
    return list(dict.fromkeys(name for result in row.results.values() for name in result.metrics))


def numbers(found: Estimate) -> dict[str, Any]:
    """An estimate for JSON; without an interval if there is one seed."""
    bounds = {"low": found.low, "high": found.high} if math.isfinite(found.error) else {}
    return {"value": found.value, "n_seeds": found.n_seeds, "has_items": found.has_items, **bounds}
