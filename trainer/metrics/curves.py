"""Plots of metrics: `python -m trainer.metrics.curves OUTPUT` draws OUTPUT/curves.png from metrics.jsonl.

`python -m trainer.metrics.curves OUTPUT OUTPUT ... METRIC` draws one metric of several runs, such as loss/syntax, into
the first folder.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Final, NamedTuple

from hypergrit_common.cli import EXIT_CODES, command
from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.files import read_limited
from hypergrit_common.json_file import parse_object
from hypergrit_common.plots import COLORS, axes
from hypergrit_common.urls import safe_message
from trainer.evaluation.metrics import in_words

MAX_BYTES: Final = 1 << 30  # more than a million rows
LARGEST: Final = 1e100
"""Largest number of a row; axes overflow beyond it."""

PANELS: Final = {
    "Loss": r"loss/(total|contrastive)",
    "Other terms": r"loss/(?!total$|contrastive$)(.*)(?<!/min)(?<!/max)",
    "Curvature": r"geometry/(.*curvature.*)",
    "Logit scale, the inverse temperature": r"geometry/(.*logit_scale)",
    "Zero-shot accuracy": r"zero_shot/(.*/(?:accuracy|chance))",
    "Retrieval: recall at 1": r"retrieval/(.*/(?:recall|chance)@1)",
    "Order: general point nearer the root": r"entailment/(.*/(?:order|chance))",
    "Entailment: area under the ROC curve": r"entailment/(.*/(?:auc|chance))",
    "Entailment: average precision": r"entailment/(.*/(?:ap|chance))",
}
"""The panels of a run by title: which metrics they have, with the label as a group. Chance levels are dashed."""
SMOOTH: Final = 20  # a curve is a running mean over a 20th of its points


class Curve(NamedTuple):
    """A metric by step."""

    label: str
    steps: list[float]
    values: list[float]


def parse_row(line: str | bytes, number: int) -> dict[str, float]:
    """The row in a line of metrics.jsonl. Raises ValueError, naming the number of the line, for anything else."""
    row = parse_object(line, f"line {number}")
    if type(row.get("step")) is not int:
        raise ValueError(f"line {number} has no step")
    for name, value in row.items():
        if not (isinstance(value, float | int) and abs(value) <= LARGEST):
            raise ValueError(f"line {number} has no number for {name:.80}")
    return row


def read_rows(path: Path) -> list[dict[str, float]]:
    """Read the rows of a metrics.jsonl. Raises UserError if it cannot be read or is empty."""
    try:
        lines = read_limited(path, MAX_BYTES).decode().splitlines()
        rows = [parse_row(line, number) for number, line in enumerate(lines, 1)]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; give the output folder of a run") from error
    if not rows:
        raise UserError(f"{path} is empty: its first row comes after log.every steps; wait for it, or lower log.every")
    return rows


def find_line(rows: Sequence[dict[str, float]], name: str, label: str) -> Curve:
    """The line of the metric `name`, which is empty if no row has it."""
    found = [row for row in rows if name in row]
    return Curve(label, [row["step"] for row in found], [row[name] for row in found])


def panels(rows: Sequence[dict[str, float]]) -> dict[str, list[Curve]]:
    """The lines of each panel for which the rows have a metric, by its title."""
    names = dict.fromkeys(name for row in rows for name in row)
    found: dict[str, list[Curve]] = {}
    for title, pattern in PANELS.items():
        for name in names:
            if fit := re.fullmatch(pattern, name):
                found.setdefault(title, []).append(find_line(rows, name, in_words(fit[1]).replace("_", " ")))
    return found


def draw(found: Mapping[str, Sequence[Curve]], title: str, path: Path) -> Path:
    """Draw all panels into one PNG file; return its path. Raises UserError if matplotlib is not installed."""
    columns, rows = min(len(found), 3), -(-len(found) // 3)
    with axes(path, 4.6 * columns, 3.1 * rows + 0.5) as first:
        figure = first.figure
        first.remove()
        figure.suptitle(safe_message(title), x=0.01, ha="left")
        for place, (name, lines) in enumerate(found.items(), start=1):
            ax = figure.add_subplot(rows, columns, place, xlabel="step")
            ax.set_title(safe_message(name), loc="left", fontsize=10)
            for color, line in zip(cycle(COLORS), lines, strict=False):
                window = max(len(line.values) // SMOOTH, 1)
                parts = [line.values[max(end - window, 0) : end] for end in range(1, len(line.values) + 1)]
                means = [sum(part) / len(part) for part in parts]
                if "chance" in line.label:  # named once, since most lines of a panel share it
                    has_name = "chance" in ax.get_legend_handles_labels()[1]
                    ax.plot(line.steps, means, "--", color="gray", label=None if has_name else "chance")
                else:
                    style = "o-" if len(parts) < SMOOTH else "-"
                    ax.plot(line.steps, means, style, color=color, label=safe_message(line.label), ms=3)
            ax.grid(alpha=0.25)
            ax.legend(frameon=False, fontsize=7.5)
        for text in figure.findobj(lambda item: hasattr(item, "set_parse_math")):
            text.set_parse_math(False)  # names are no formulas
    return path


def write_curves(output: Path) -> Path:
    """Draw OUTPUT/curves.png for the run in a folder; return its path. Raises UserError without metrics or matplotlib."""
    rows = read_rows(output / "metrics.jsonl")
    if not (found := panels(rows)):
        raise UserError(
            f"{output / 'metrics.jsonl'} has none of the metrics of a training; give the output folder of a run"
        )
    return draw(found, f"{output.name}, {rows[-1]['step']:,} steps", output / "curves.png")


def compare_runs(outputs: Sequence[Path], metric: str) -> Path:
    """Draw a metric of several runs into the folder of the first; return the path. Raises UserError if a run lacks it."""
    lines = [find_line(read_rows(output / "metrics.jsonl"), metric, output.name) for output in outputs]
    if lacking := [str(output) for output, line in zip(outputs, lines, strict=True) if not line.steps]:
        raise UserError(f"{', '.join(lacking)} has no metric {metric!r}; metrics.jsonl has the names")
    return draw({metric: lines}, metric, outputs[0] / f"curves-{metric.replace('/', '_')}.png")


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if len(arguments) in (0, 2) or arguments[0] in ("-h", "--help"):
        print_text(f"{__doc__}\n\n{EXIT_CODES}")
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    *others, last = arguments
    print_text(str(compare_runs([Path(output) for output in others], last) if others else write_curves(Path(last))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
