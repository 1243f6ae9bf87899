"""How right the boxes of a finished run are, against the known truth: `python -m demo.truth_report out/demo`."""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from demo.make_input import EARLY_STAGES, INPUT
from demo.world.sprites import HELD_OUT_STYLE
from demo.world.truth import Prediction, Tally, Truth, prediction_of, tally
from schemas.stats import Statistics
from schemas.status import BOX_REMOVALS

FILTERS = tuple(BOX_REMOVALS)  # in the order in which they act
LEVELS = ("grounder", *FILTERS)
"""What is counted: every box the grounder gave, then what is left after each filter."""

COLUMNS = ("id", "stage", "noun_chunks", "boxes", "box_scores")


def rows_of(output: Path) -> Iterator[dict[str, Any]]:
    """Every input row of a finished run, with the columns that the truth is compared with."""
    files = sorted((output / "arrow").glob("*.arrow"))
    if not files:
        raise FileNotFoundError(f"no shards in {output / 'arrow'}: has the job run, and with arrow among its formats?")
    for file in files:
        with pa.memory_map(str(file)) as source:
            yield from pa.ipc.open_file(source).read_all().select(COLUMNS).to_pylist()


def predictions(row: dict[str, Any], level: str) -> list[Prediction]:
    """The boxes of one row that are left after the filters up to `level`."""
    passed = LEVELS[1 : LEVELS.index(level) + 1]
    boxes, scores = row["boxes"] or [], row["box_scores"] or []
    return [
        prediction_of(row["noun_chunks"][box["phrase"]], box)
        for box, score in zip(boxes, scores or [{"removed": None}] * len(boxes), strict=True)
        if score["removed"] not in passed
    ]


def truth_figures(rows: Iterable[dict[str, Any]], truths: dict[str, Truth]) -> dict[str, Any]:
    """Precision and recall of the kept boxes, by style and after each filter, ready for stats.json.

    Recall is of all true boxes of the images that arrived with their caption, small ones and those of rows that the
    models gave up on included.
    """
    tallies: dict[tuple[str, str], Tally] = {}
    n_images = 0
    for row in rows:
        if row["id"] not in truths or row["stage"] in EARLY_STAGES[:-1]:
            continue
        truth = truths[row["id"]]
        n_images += 1
        share = "held_out" if truth.style == HELD_OUT_STYLE else "trained"
        for level in LEVELS:
            found = tally(predictions(row, level), truth)
            for group in ("all", share, truth.style):
                tallies[group, level] = tallies.get((group, level), Tally()) + found
    groups = sorted({group for group, _ in tallies})
    final = {group: figures(tallies[group, LEVELS[-1]]) for group in groups}
    return {
        **final.get("all", figures(Tally())),
        "n_images": n_images,
        "styles": {group: value for group, value in final.items() if group != "all"},
        "after": {
            level: {
                group: figures(tallies[group, level]) for group in ("all", "trained", "held_out") if group in groups
            }
            for level in LEVELS
        },
    }


def figures(found: Tally) -> dict[str, Any]:
    return {"precision": round(found.precision, 4), "recall": round(found.recall, 4), **asdict(found)}


def read_truth(folder: Path) -> dict[str, Truth]:
    """truth.json of the demo's input."""
    return {k: Truth.from_json(v) for k, v in json.loads((folder / "truth.json").read_text("utf-8")).items()}


def table_of(truth: dict[str, Any]) -> str:
    """The figures as lines of text."""
    names = {
        "grounder": "all boxes of the grounder",
        "box_too_small": "  without small boxes",
        "low_score": "  after the grounding score",
        "low_clip_score": "  after the CLIP score: kept",
    }
    lines = [f"{'boxes against the truth, IoU 0.5':34} {'precision':>10} {'recall':>8} {'boxes':>7} {'true':>6}"]

    def line(name: str, value: dict[str, Any]) -> str:
        counts = f"{value['n_predicted']:7d} {value['n_true']:6d}"
        return f"{name:34} {value['precision']:10.3f} {value['recall']:8.3f} {counts}"

    for group, title in (("trained", "styles seen in training"), ("held_out", "a style never seen")):
        lines.append(f"{title}:")
        lines += [
            line("  " + names[level], truth["after"][level][group])
            for level in LEVELS
            if group in truth["after"][level]
        ]
    lines.append(line("all kept boxes", truth))
    return "\n".join(lines)


def unexpected_drops(stats: Statistics, expected: dict[str, dict[str, int]]) -> list[str]:
    """One line for each early drop reason whose count is not the one the input was made for."""
    lines = []
    for stage in EARLY_STAGES:
        found, wanted = stats["rows"]["dropped"].get(stage, {}), expected.get(stage, {})
        for reason in sorted({*found, *wanted}):
            if found.get(reason, 0) != wanted.get(reason, 0):
                lines.append(f"{stage}/{reason}: {found.get(reason, 0)} rows, expected {wanted.get(reason, 0)}")
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, help="the job's output folder")
    parser.add_argument("--input", type=Path, default=INPUT, help="folder of truth.json")
    options = parser.parse_args()
    print(table_of(truth_figures(rows_of(options.output), read_truth(options.input))))


if __name__ == "__main__":
    main()
