"""Plots of metrics: `python -m trainer.metrics.curves OUTPUT` draws OUTPUT/curves.png from metrics.jsonl.

`python -m trainer.metrics.curves OUTPUT OUTPUT ... METRIC` draws one metric of several runs, such as loss/syntax, into
the first folder.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hypergrit_common.cli import EXIT_CODES, command
from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.plots import axes

COLOURS: Final = ("#3b6fb6", "#d1603d", "#3f9b6c", "#8a5fb0", "#c29b2f", "#c0577f", "#4aa3a8", "#7b8794")
GREY: Final = len(COLOURS) - 1
GRID, TEXT, FAINT = "#e4e7eb", "#333f4d", "#7b8794"
SMOOTH: Final = 20  # a smoothed curve is the running mean over a 20th of its points
ENTAILMENT_PANELS: Final = {
    "order": "Order: general point nearer the root",
    "auc": "Entailment: area under the ROC curve",
    "ap": "Entailment: average precision",
}
SHARES: Final = ("satisfied", "image_entails")
"""Endings of the names of terms that are shares of pairs, not losses: the `shares` of the models."""
PANEL_WIDTH_IN, PANEL_HEIGHT_IN = 4.6, 3.1

Row = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """The values of one metric by step. `dashed` lines show chance levels."""

    label: str | None  # None: not in the legend
    steps: list[int]
    values: list[float]
    dashed: bool = False
    colour: int = 0
    # Minimum and maximum of a metric with several numbers, such as one curvature per factor.
    low: list[float] | None = None
    high: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot with its lines."""

    title: str
    lines: list[Line]
    percent: bool = False
    noisy: bool = False  # draw smoothed lines over the values of each step


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a metrics.jsonl. Raises UserError if it cannot be read or is empty."""
    try:
        check_file(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        if odd := [row for row in rows if not isinstance(row, dict) or not isinstance(row.get("step"), int)]:
            raise ValueError(f"a row is {str(odd[0])[:80]}, not an object with a step")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}; give the output folder of a run") from error
    if not rows:
        raise UserError(
            f"{path} is empty: the run writes its first row after log.every steps; wait for it, or lower log.every"
        )
    return rows


def find_line(rows: Sequence[Row], name: str, label: str, colour: int, dashed: bool = False) -> Line | None:
    """The line of the metric `name`, or None if no row has it."""
    found = [row for row in rows if name in row]
    if not found:
        return None
    band: dict[str, list[float] | None] = {"low": None, "high": None}
    if all(f"{name}/min" in row for row in found):
        band = {"low": [row[f"{name}/min"] for row in found], "high": [row[f"{name}/max"] for row in found]}
    steps, values = [int(row["step"]) for row in found], [row[name] for row in found]
    return Line(label=label, steps=steps, values=values, dashed=dashed, colour=colour, **band)


def find_lines(rows: Sequence[Row], labels: dict[str, str]) -> list[Line]:
    """The lines of several metrics, given as name -> label."""
    found = (find_line(rows, name, label, colour) for colour, (name, label) in enumerate(labels.items()))
    return [line for line in found if line]


def panels(rows: Sequence[Row]) -> list[Panel]:
    """The panels for the metrics that the rows hold."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    losses = [name for name in names if name.startswith("loss/") and not name.endswith(("/min", "/max"))]
    main = [name for name in losses if name in ("loss/total", "loss/contrastive")]
    if len(losses) == len(main):  # without other terms both are the same curve
        main = main[:1]
    shares = [name for name in losses if name.endswith(SHARES)]
    others = [name for name in losses if name not in main + shares]
    curvatures = [name for name in names if name.startswith("geometry/") and name.endswith("curvature")]
    scales = [name for name in names if name.startswith("geometry/") and name.endswith("logit_scale")]
    temperatures = [{"step": row["step"]} | {name: 1 / row[name] for name in scales if row.get(name)} for row in rows]
    has_band = any(f"{name}/min" in names for name in curvatures)
    curvature_title = "Curvature (band: minimum to maximum over the factors)" if has_band else "Curvature"
    found = [
        Panel(title="Loss", lines=find_lines(rows, {name: short(name) for name in main}), noisy=True),
        Panel(title="Other terms", lines=find_lines(rows, {name: short(name) for name in others}), noisy=True),
        Panel(title=curvature_title, lines=find_lines(rows, {name: short(name) for name in curvatures})),
        Panel(title="Temperature", lines=find_lines(temperatures, {name: f"1 / {short(name)}" for name in scales})),
        Panel(title="Zero-shot accuracy", lines=lines_with_chance(rows, names, "zero_shot/", "accuracy"), percent=True),
        Panel(
            title="Retrieval: recall at 1", lines=lines_with_chance(rows, names, "retrieval/", "recall@1"), percent=True
        ),
        *(
            Panel(title=title, lines=lines_with_chance(rows, names, "entailment/", result), percent=True)
            for result, title in ENTAILMENT_PANELS.items()
        ),
    ]
    return [panel for panel in found if panel.lines]


def short(name: str) -> str:
    """The label of a metric: its name without the group."""
    return name.partition("/")[2].replace("_", " ")


def lines_with_chance(rows: Sequence[Row], names: list[str], group: str, result: str) -> list[Line]:
    """The lines of every metric GROUP.../RESULT, and dashed lines of their chance levels: one line if all are equal.

    Chance levels are taken from the rows with the result.
    """
    chance = result.replace("recall", "chance") if "recall" in result else "chance"
    stems = [
        name.removesuffix(f"/{result}") for name in names if name.startswith(group) and name.endswith(f"/{result}")
    ]
    found = find_lines(rows, {f"{stem}/{result}": stem.removeprefix(group).replace("_", " ") for stem in stems})
    candidates = (
        find_line([row for row in rows if f"{stem}/{result}" in row], f"{stem}/{chance}", "chance", colour, dashed=True)
        for colour, stem in enumerate(stems)
    )
    chances = [line for line in candidates if line]
    if all(line.values == chances[0].values for line in chances):
        return found + [replace(line, colour=GREY) for line in chances[:1]]
    unlabelled = [replace(line, label=None) for line in chances[1:]]
    return [*found, *unlabelled, replace(chances[0], label="dashed: chance")]


def smooth(values: list[float]) -> list[float]:
    """Running mean over the last 20th of the points."""
    window = max(len(values) // SMOOTH, 1)
    return [sum(values[max(i - window + 1, 0) : i + 1]) / (i + 1 - max(i - window + 1, 0)) for i in range(len(values))]


def draw(found: list[Panel], title: str, path: Path) -> None:
    """Draw all panels into one PNG file. Raises UserError if matplotlib is not installed."""
    columns = min(len(found), 2 if len(found) == 4 else 4 if len(found) > 6 else 3)
    rows = -(-len(found) // columns)
    with axes(path, PANEL_WIDTH_IN * columns, PANEL_HEIGHT_IN * rows + 0.5) as first:
        figure = first.figure
        first.remove()
        figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left", color=TEXT)
        for index, panel in enumerate(found):
            draw_panel(figure.add_subplot(rows, columns, index + 1), panel)


def draw_panel(ax: Any, panel: Panel) -> None:
    """Draw one panel into the axes of a figure."""
    scale = 100 if panel.percent else 1
    for line in panel.lines:
        colour, values = COLOURS[line.colour % len(COLOURS)], [scale * value for value in line.values]
        style: dict[str, Any] = {"color": colour, "linewidth": 1.0 if line.dashed else 1.8}
        style |= {"linestyle": (0, (3, 3))} if line.dashed else {}
        if panel.noisy:
            ax.plot(line.steps, values, color=colour, linewidth=0.7, alpha=0.3)
            values = smooth(values)
        if line.low and line.high:
            ax.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        marker = {"marker": "o", "markersize": 3.5} if len(values) < 20 and not line.dashed else {}
        ax.plot(line.steps, values, label=line.label or "_", **style, **marker)
    ax.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", color=TEXT)
    ax.set_xlabel("step", fontsize=9, color=FAINT)
    ax.grid(color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(colors=FAINT, length=0, labelsize=9)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color(GRID)
    ax.set_xlim(left=0)
    if panel.percent:
        highest = max(scale * value for line in panel.lines for value in line.values)
        ax.set_ylim(0, min(100, 1.15 * highest) or 100)
        ax.yaxis.set_major_formatter("{x:g} %")
    if len(panel.lines) > 1:
        ax.legend(frameon=False, fontsize=7.5, labelcolor=TEXT, loc="best")


def write_curves(output: Path) -> Path:
    """Draw OUTPUT/curves.png for the run in the folder `output`; return its path.

    Raises UserError if the run has no metrics or matplotlib is not installed.
    """
    path = output / "curves.png"
    rows = read_rows(output / "metrics.jsonl")
    draw(panels(rows), f"{output.name}, {rows[-1]['step']:,} steps", path)
    return path


def compare_runs(outputs: Sequence[Path], metric: str) -> Path:
    """Draw a metric of several runs into the folder of the first one; return the path.

    Raises UserError if a run lacks the metric or matplotlib is not installed.
    """
    lines = []
    for colour, output in enumerate(outputs):
        rows = read_rows(output / "metrics.jsonl")
        line = find_line(rows, metric, output.name, colour)
        if line is None:
            raise UserError(f"{output} has no metric {metric!r}; choose one of {', '.join(sorted(rows[-1]))}")
        lines.append(line)
    path = outputs[0] / f"curves-{metric.replace('/', '_')}.png"
    draw([Panel(title=short(metric), lines=lines, noisy=True)], metric, path)
    return path


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
