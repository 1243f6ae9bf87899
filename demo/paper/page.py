"""Write the page of the study: index.html and paper.md, each without external files, and paper.json with all numbers."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from demo.paper import results
from demo.paper.plan import MAIN, Size
from demo.paper.results import CONDITIONS, Claim, Judgement, RowResults, Rows, estimate, judge
from demo.paper.run import PICTURES, WALKS
from demo.paper.statistics import MeanWithError
from demo.paper.tables import HEADINGS, all_tables
from demo.train_demo_data import ROOT
from hypergrit_common.config import flatten, runtime_keys
from hypergrit_common.disk import atomic_write
from hypergrit_common.html import render_page
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.removed import REMOVED_FROM_TRAIN
from hypergrit_common.text import shortened
from trainer.config import TrainConfig, as_dict, load_config
from trainer.evaluation.report import page, tables

FOLDER: Final = Path(__file__).resolve().parent
OPENING: Final = (  # claims whose differences open the page
    "MERU retrieves images better than CLIP",
    "HyCoCLIP classifies better than CLIP",
    "PHyCLIP classifies better than HyCoCLIP",
)
ENTAILMENT: Final = (
    ("Entailment raises HyCoCLIP's order of phrases and captions", "order:cross_text/order", 0.05),
    ("Entailment raises HyCoCLIP's tau of chains", "chains:scenes/path/tau", 0.02),
)
"""Text, metric and margin of the comparisons of HyCoCLIP with itself without entailment that follow them."""
WITHIN: Final = ("not above", "not below", "equal")  # directions of claims that rest on a margin if they hold
SKIPPED: Final = {"output", "seed", "data.seed", "data.features", "data.shards", "model_name"}  # not compared


def write_page(name: str, size: Size, out: Path) -> Path:
    """Write index.html, paper.md and paper.json from the results and pictures in `out`. Return the path of the page.

    Raises UserError for results that cannot be read, or whose items differ.
    """
    rows = results.read_rows(out / "results", size.seeds_of)
    judgements = [judge(claim, rows) for claim in results.claims()] if size.has_claims else []
    study = {"study": name, "size": asdict(size), "notes": notes(rows, size), "facts": facts(rows)}
    write_object(study | numbers(rows, judgements), out / "paper.json")
    values = {
        "rows": rows,
        "tables": list(all_tables(rows)),
        "judgements": judgements,
        "answer": answer(judgements, rows) if judgements else [],
        "plots": list(plots(rows)),
        "settings": settings_of(rows),
        "pictures": pictures(out / "results" / "pictures", rows),
        "conditions": CONDITIONS,
        "verdicts": [*results.VERDICTS, "mixed"],
        "line": tables.row,
        "place": place,
        "interval": results.interval,
        "shown": results.shown,
        "style": (page.FOLDER / "page.css").read_text(encoding="utf-8"),
    }
    for file, template in (("index.html", "page.html"), ("paper.md", "page.md")):
        with atomic_write(out / file) as draft:
            text = render_page(FOLDER, template, {"md": tables.escape}, **study, **values)
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    return out / "index.html"


def notes(rows: Rows, size: Size) -> list[str]:
    """Notes on the results: unfinished and collapsed runs, choices at the edge of the grid, and changed claims."""
    facts = {key: list(row.facts.values()) for key, row in rows.items()}
    planned = {variant.key: (len(facts.get(variant.key, ())), n) for variant, n in size.seeds_of.items()}
    hashes = {run["claims"] for runs in facts.values() for run in runs}
    return lines(
        "notes.txt",
        size=size,
        planned=planned,
        missing=[f"{key} ({made} of {n})" for key, (made, n) in planned.items() if made != n],
        collapsed={key: n for key, runs in facts.items() if (n := sum(run["collapsed"] for run in runs))},
        weak={key: n for key, row in rows.items() if (n := n_weak_seeds(row))},
        bound=[key for key, runs in facts.items() if all(map(is_at_bound, runs))],
        chosen=[runs[0]["identity"] for runs in facts.values()],
        has_changed=not hashes <= {hashlib.sha256(results.FILE.read_bytes()).hexdigest()},
    )


def lines(template: str, **values: Any) -> list[str]:
    """The lines of a template."""
    return render_page(FOLDER, template, {"shortened": shortened}, **values).splitlines()


def is_at_bound(run: Mapping[str, Any]) -> bool:
    """True if all curvatures that a run has learned are the least that is allowed."""
    model, found = run["settings"]["model"], run["curvature"] or [math.inf]
    is_learned = model.get("curv_learnable", False)
    return is_learned and max(found) <= 1.001 * model["curv_init"] / model["curv_max_ratio"]


def n_weak_seeds(row: RowResults) -> int:
    """The number of seeds at chance or below in a metric of the main table whose mean is clearly above chance."""
    levels = row.chance[row.chance.index.isin(HEADINGS)]
    values = row.metrics[levels.index]
    return int(((values <= levels) & (values.mean() > 1.5 * levels)).any(axis=1).sum())


def answer(judgements: Sequence[Judgement], rows: Rows) -> list[str]:
    """The first sentences of the page."""
    entries = [entry for entry in judgements if entry.claim.kind != "component"]
    pair = ("hycoclip", "hycoclip-no-entailment")
    own = [Claim("this study", "control", "component", text, name, *pair, "above", m) for text, name, m in ENTAILMENT]
    mixed = [{found.verdict for found in entry.counted} for entry in entries if entry.verdict == "mixed"]
    findings = [found for entry in judgements for found in entry.counted]
    return lines(
        "answer.txt",
        openings=[entry for entry in judgements if entry.claim.text in OPENING] + [judge(claim, rows) for claim in own],
        entries=entries,
        counts=Counter(entry.verdict for entry in entries),
        n_one=sum("holds" in found for found in mixed),
        n_opposite=mixed.count({"holds", "reversed"}),
        n_single=sum(len({found.estimate is None for found in entry.counted}) == 2 for entry in entries),
        tests=[found.estimate for found in findings if found.estimate and found.verdict != "not testable"],
        unchanged=half_margins(entries),
    )


def half_margins(entries: Sequence[Judgement]) -> list[bool]:
    """For each finding that rests on a margin, whether it has the same verdict with half of it."""
    return [
        results.verdict(claim.direction, claim.margin / 2, found.estimate) == found.verdict
        for claim, found in ((entry.claim, found) for entry in entries for found in entry.counted)
        if found.estimate and (found.verdict == "absent" or (found.verdict == "holds" and claim.direction in WITHIN))
    ]


def plots(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield dot plots of the main metrics: the estimates of each row by condition, and the ends of the axis."""
    titles = {row.variant.row: row.variant.title for row in rows.values() if row.variant.table == MAIN}
    for metric, title in HEADINGS.items():
        lines: dict[str, dict[str, MeanWithError]] = {name: {} for name in titles.values()}
        for (name, shown), (label, (suffix, _)) in product(titles.items(), CONDITIONS.items()):
            if (row := rows.get(name + suffix)) and (found := estimate(metric, row)):
                lines[shown][label] = found
        values = [value for line in lines.values() for value in line.values()]
        ends = [end for v in values for end in ((v.low, v.high) if math.isfinite(v.error) else (v.value,))]
        if ends:
            chance = results.chance_of(rows.values(), metric)
            yield {"title": title, "metric": metric, "lines": lines, "ends": (min(ends), max(ends)), "chance": chance}


def place(value: float, ends: tuple[float, float]) -> float:
    """The place of a value on an axis with these ends, in percent of its width."""
    return round(float(np.interp(value, ends, (3, 97))), 2)


def settings_of(rows: Rows) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Settings of first seeds that differ from the papers' jobs: those that all rows share, and the others by row."""
    found = pd.DataFrame(
        [
            (key, name, str(paper.get(name, "–")), str(value))
            for key, row in rows.items()
            for paper, free in [job_of(row.variant.model)]
            for name, value in flatten(next(iter(row.facts.values()))["settings"]).items()
            if value != paper.get(name) and not any(f"{name}.".startswith(f"{key}.") for key in free)
        ],
        columns=["row", "name", "paper", "here"],
    )
    values = found.groupby("name").agg({"row": "count", "here": "unique", "paper": "unique"})
    shared = values[(values["row"] == len(rows)) & (values["here"].str.len() == 1)]
    others = found[~found["name"].isin(shared.index)].sort_values("name")
    texts = others["name"] + " " + others["here"] + " (job: " + others["paper"] + ")"
    by_row = texts.groupby(others["row"]).agg("; ".join)
    return (
        [(name, ", ".join(sorted(entry.paper)), entry.here[0]) for name, entry in shared.iterrows()],
        [(f"{row.variant.title} ({key})", by_row.get(key, "nothing else")) for key, row in rows.items()],
    )


@cache
def job_of(model: str) -> tuple[dict[str, Any], set[str]]:
    """The settings of the job of a model's paper, and the names of those that are not compared."""
    config = load_config([str(ROOT / "jobs" / "train" / f"{model}.yaml")])
    names = runtime_keys(TrainConfig, {"model": type(config.model)}) | SKIPPED
    return {**REMOVED_FROM_TRAIN, **flatten(as_dict(config))}, names


def facts(rows: Rows) -> dict[str, str]:
    """Machines, versions and times of all results."""
    runs = [run | run["seconds"] for row in rows.values() for run in row.facts.values()]
    made = pd.DataFrame(runs, columns=["machine", "version", "train", "evaluate"])
    train, evaluate = made[["train", "evaluate"]].sum() / 60
    return {
        "machines": "; ".join(sorted(set(made["machine"]))),
        "versions": "HyperGRIT " + ", ".join(sorted(set(made["version"]))),
        "trainings": f"{len(made)}, {train:.0f} min in total, each with one thread; not counted: data, choice of rates",
        "evaluations": f"{evaluate:.0f} min in total",
    }


def pictures(folder: Path, rows: Rows) -> dict[str, Any]:
    """For each row that has pictures, by its title: the figures with their titles, and the walks by task."""
    found = {}
    for key, row in rows.items():
        made = {path.stem: read_object(path) for path in (folder / key).glob("*.json")}
        figures = [entry for task in PICTURES if task in made for entry in made[task]["figures"]]
        walks = {task: made[task]["details"].get("pexels") for task in WALKS if task in made}
        if made:
            found[row.variant.title] = (
                [(entry["title"], page.inline_file(folder / key / Path(entry["file"]).name)) for entry in figures],
                {task: page.Details(folder).draw(entries) for task, entries in walks.items() if entries},
            )
    return found


def numbers(rows: Rows, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """All estimates and verdicts."""

    def as_json(found: MeanWithError | None) -> dict[str, Any]:
        bounds = {"low": found.low, "high": found.high} if found and math.isfinite(found.error) else {}
        return {"value": found.value, "n_seeds": found.n_seeds, "has_items": found.has_items} | bounds if found else {}

    metrics = {key: {name: as_json(estimate(name, row)) for name in row.metrics} for key, row in rows.items()}
    claims = [
        {**entry.claim._asdict(), "verdict": entry.verdict}
        | {name: {"verdict": found.verdict} | as_json(found.estimate) for name, found in entry.findings.items()}
        for entry in judgements
    ]
    about = {key: {"title": row.variant.title, "seeds": list(row.facts)} for key, row in rows.items()}
    return {"rows": about, "metrics": metrics, "claims": claims}
