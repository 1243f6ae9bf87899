"""Compare the boxes of a finished run with the ground truth: `python -m demo.truth_report out/demo`."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from demo.make_input import EARLY_STAGES, INPUT
from demo.world.sprites import HELD_OUT_STYLE
from demo.world.truth import Prediction, Tally, Truth, prediction_of, tally
from hypergrit_common.cli import EXIT_CODES, command
from schemas.stats import Statistics
from schemas.status import BOX_REMOVALS

FILTERS = tuple(name for name in BOX_REMOVALS if name != "low_presence")  # the grounder knows no presence
LEVELS = ("grounder", *FILTERS)
"""Points of measurement: all boxes of the grounder, then the boxes that remain after each filter."""

COLUMNS = ("id", "stage", "noun_chunks", "boxes", "box_scores")


def read_rows(output: Path) -> Iterator[dict[str, Any]]:
    """Yield the columns `COLUMNS` of all input rows of a finished run.

    Raises FileNotFoundError if the run has no arrow shards.
    """
    files = sorted((output / "arrow").rglob("*.arrow"))
    if not files:
        raise FileNotFoundError(f"{output / 'arrow'}: no shards; run the job first, with `arrow` among its formats")
    for file in files:
        with pa.memory_map(str(file)) as source:
            yield from pa.ipc.open_file(source).read_all().select(COLUMNS).to_pylist()


def predictions(row: dict[str, Any], level: str) -> list[Prediction]:
    """Return the boxes of a row that remain after the filters up to `level`."""
    applied = LEVELS[1 : LEVELS.index(level) + 1]
    boxes, scores = row["boxes"] or [], row["box_scores"] or []
    return [
        prediction_of(row["noun_chunks"][box["phrase"]], box)
        for box, score in zip(boxes, scores or [{"removed": None}] * len(boxes), strict=True)
        if score["removed"] not in applied
    ]


def truth_metrics(rows: Iterable[dict[str, Any]], truths: dict[str, Truth]) -> dict[str, Any]:
    """Return precision and recall of the kept boxes, by style and after each filter, for stats.json.

    Recall refers to all true boxes of the downloaded images that have a caption, including small boxes and the boxes of
    rows that a model stage dropped.
    """
    tallies: dict[tuple[str, str], Tally] = {}
    n_images = 0
    for row in rows:
        if row["id"] not in truths or row["stage"] in EARLY_STAGES[:-1]:
            continue
        truth = truths[row["id"]]
        n_images += 1
        usage = "held_out" if truth.style == HELD_OUT_STYLE else "trained"
        for level in LEVELS:
            found = tally(predictions(row, level), truth)
            for group in ("all", usage, truth.style):
                tallies[group, level] = tallies.get((group, level), Tally()) + found
    groups = sorted({group for group, _ in tallies})
    shown = [group for group in ("all", "trained", "held_out") if group in groups]
    final = {group: metrics(tallies[group, LEVELS[-1]]) for group in groups}
    return {
        **final.get("all", metrics(Tally())),
        "n_images": n_images,
        "styles": {group: value for group, value in final.items() if group != "all"},
        "after": {level: {group: metrics(tallies[group, level]) for group in shown} for level in LEVELS},
    }


def metrics(counts: Tally) -> dict[str, Any]:
    """Return precision, recall, and the counts from which they are computed."""
    return {"precision": round(counts.precision, 4), "recall": round(counts.recall, 4), **asdict(counts)}


def read_truth(folder: Path) -> dict[str, Truth]:
    """Read truth.json of the demo's input as {id: ground truth}."""
    return {k: Truth.from_json(v) for k, v in json.loads((folder / "truth.json").read_text("utf-8")).items()}


def format_table(truth: dict[str, Any]) -> str:
    """Format the result of `truth_metrics` as a table."""
    names = {
        "grounder": "all boxes of the grounder",
        "box_too_small": "  after the size filter",
        "low_score": "  after the grounding score filter",
        "low_clip_score": "  after the CLIP filter (kept)",
    }
    lines = [f"{'boxes against ground truth, IoU 0.5':36} {'precision':>10} {'recall':>8} {'boxes':>7} {'true':>6}"]

    def line(name: str, value: dict[str, Any]) -> str:
        counts = f"{value['n_predicted']:7d} {value['n_true']:6d}"
        return f"{name:36} {value['precision']:10.3f} {value['recall']:8.3f} {counts}"

    for group, title in (("trained", "training styles"), ("held_out", "held-out style")):
        lines.append(f"{title}:")
        found = {level: groups[group] for level, groups in truth["after"].items() if group in groups}
        lines += [line("  " + names.get(level, f"  after {level}"), value) for level, value in found.items()]
    lines.append(line("all kept boxes", truth))
    return "\n".join(lines)


def unexpected_drops(stats: Statistics, expected: dict[str, dict[str, int]]) -> list[str]:
    """Return a line per early drop reason whose count differs from the expected one."""
    lines = []
    for stage in EARLY_STAGES:
        actual, planned = stats["rows"]["dropped"].get(stage, {}), expected.get(stage, {})
        for reason in sorted({*actual, *planned}):
            if actual.get(reason, 0) != planned.get(reason, 0):
                lines.append(f"{stage}/{reason}: {actual.get(reason, 0)} rows, expected {planned.get(reason, 0)}")
    return lines


@command()
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], epilog=EXIT_CODES)
    parser.add_argument("output", type=Path, help="output folder of the job")
    parser.add_argument("--input", type=Path, default=INPUT, help="folder that contains truth.json")
    options = parser.parse_args()
    print(format_table(truth_metrics(read_rows(options.output), read_truth(options.input))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
