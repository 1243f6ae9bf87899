"""Pictures of a run's curves: `python -m trainer.curves OUTPUT` draws OUTPUT/metrics.jsonl to OUTPUT/curves.png."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import UserError

COLOURS = ("#3b6fb6", "#d1603d", "#3f9b6c", "#8a5fb0", "#c29b2f", "#c0577f", "#4aa3a8", "#7b8794")
GREY = len(COLOURS) - 1
GRID, TEXT, FAINT = "#e4e7eb", "#333f4d", "#7b8794"
SMOOTH = 20  # a curve shows the running mean over a 20th of its points, over the points themselves
WIDTH_IN, HEIGHT_IN = 4.6, 3.1  # of one panel


@dataclass(frozen=True, kw_only=True)
class Line:
    """Values of one name by step; `dashed` is what chance gives."""

    label: str | None  # None: not in the legend
    steps: list[int]
    values: list[float]
    dashed: bool = False
    colour: int = 0
    low: list[float] | None = None  # least and greatest of several, such as the factors' curvatures
    high: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    lines: list[Line]
    percent: bool = False
    noisy: bool = False  # one value a step, to be smoothed


def read_rows(path: Path) -> list[dict[str, float]]:
    """Rows of a metrics.jsonl. Raises UserError if there are none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; give the output folder of a run") from error
    if not rows:
        raise UserError(f"{path} is empty: the run has not come to its first row; log.every says when it does")
    return rows


def line(rows: Sequence[dict[str, float]], name: str, label: str, colour: int, dashed: bool = False) -> Line | None:
    """The curve of one name, None if no row has it."""
    own = [row for row in rows if name in row]
    if not own:
        return None
    bands: dict[str, list[float] | None] = {"low": None, "high": None}
    if all(f"{name}/min" in row for row in own):
        bands = {"low": [row[f"{name}/min"] for row in own], "high": [row[f"{name}/max"] for row in own]}
    steps, values = [int(row["step"]) for row in own], [row[name] for row in own]
    return Line(label=label, steps=steps, values=values, dashed=dashed, colour=colour, **bands)


def panels(rows: Sequence[dict[str, float]]) -> list[Panel]:
    """What there is to see in a run, from the names in its rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    terms = [name for name in names if name.startswith("loss/") and not name.endswith(("/min", "/max"))]
    main = [name for name in terms if name in ("loss/total", "loss/contrastive")]
    if len(terms) == len(main):  # no other terms: both are the same curve
        main = main[:1]
    shares = [name for name in terms if name.endswith(("satisfied", "image_entails"))]
    others = [name for name in terms if name not in main + shares]
    geometry = [name for name in names if name.startswith("geometry/")]
    curvatures = [(name, short(name)) for name in geometry if name.endswith("curvature")]
    scales = [(name, f"1 / {short(name)}") for name in geometry if name.endswith("logit_scale")]
    temperatures = [
        {"step": row["step"]} | {name: 1 / row[name] for name, _ in scales if row.get(name)} for row in rows
    ]
    found = [
        Panel(title="Loss", lines=lines_of(rows, [(name, short(name)) for name in main]), noisy=True),
        Panel(title="Other terms", lines=lines_of(rows, [(name, short(name)) for name in others]), noisy=True),
        Panel(title="Curvature (band: least and greatest factor)", lines=lines_of(rows, curvatures)),
        Panel(title="Temperature", lines=lines_of(temperatures, scales)),
        Panel(title="Zero-shot accuracy", lines=beside_chance(rows, names, "zero_shot/", "accuracy"), percent=True),
        Panel(title="Retrieval: recall at 1", lines=beside_chance(rows, names, "retrieval/", "recall@1"), percent=True),
        Panel(
            title="Entailments that hold", lines=beside_chance(rows, names, "entailment/", "satisfied"), percent=True
        ),
    ]
    if not any(f"{name}/min" in names for name, _ in curvatures):
        found[2] = Panel(title="Curvature", lines=found[2].lines)
    return [panel for panel in found if panel.lines]


def short(name: str) -> str:
    return name.partition("/")[2].replace("_", " ")


def lines_of(rows: Sequence[dict[str, float]], names: list[tuple[str, str]]) -> list[Line]:
    found = (line(rows, name, label, colour) for colour, (name, label) in enumerate(names))
    return [one for one in found if one]


def beside_chance(rows: Sequence[dict[str, float]], names: list[str], head: str, figure: str) -> list[Line]:
    """Every `head/.../figure` with the chance of the same, dashed."""
    chance = figure.replace("recall", "chance") if "recall" in figure else "chance"
    own = [name for name in names if name.startswith(head) and name.endswith(f"/{figure}")]
    found: list[Line | None] = []
    by_chance: list[Line | None] = []
    for colour, name in enumerate(own):
        stem = name.removesuffix(f"/{figure}")
        found.append(line(rows, name, stem.removeprefix(head).replace("_", " "), colour))
        by_chance.append(line(rows, f"{stem}/{chance}", "chance", colour, dashed=True))
    chances = [one for one in by_chance if one]
    if all(one.values == chances[0].values for one in chances):
        chances = [replace(one, colour=GREY) for one in chances[:1]]
    else:
        chances = [replace(one, label=None) for one in chances[1:]] + [replace(chances[0], label="dashed: chance")]
    return [one for one in found if one] + chances


def smooth(values: list[float]) -> list[float]:
    """Running mean over the last 20th of the points."""
    window = max(len(values) // SMOOTH, 1)
    return [sum(values[max(i - window + 1, 0) : i + 1]) / (i + 1 - max(i - window + 1, 0)) for i in range(len(values))]


def draw(found: list[Panel], title: str, path: Path) -> None:
    """All panels in one PNG. Raises UserError without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"curves need the package matplotlib ({error}): pip install matplotlib") from error
    mpl.rcParams.update({"font.size": 9, "text.color": TEXT, "axes.labelcolor": FAINT, "font.family": "sans-serif"})
    columns = min(len(found), 2 if len(found) == 4 else 4 if len(found) > 6 else 3)
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(WIDTH_IN * columns, HEIGHT_IN * rows + 0.5), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    for index, panel in enumerate(found):
        draw_panel(figure.add_subplot(rows, columns, index + 1), panel)
    figure.savefig(path)


def draw_panel(axes: Any, panel: Panel) -> None:
    scale = 100 if panel.percent else 1
    for one in panel.lines:
        colour, values = COLOURS[one.colour % len(COLOURS)], [scale * value for value in one.values]
        style: dict[str, Any] = {"color": colour, "linewidth": 1.0 if one.dashed else 1.8}
        style |= {"linestyle": (0, (3, 3))} if one.dashed else {}
        if panel.noisy:
            axes.plot(one.steps, values, color=colour, linewidth=0.7, alpha=0.3)
            values = smooth(values)
        if one.low and one.high:
            axes.fill_between(one.steps, one.low, one.high, color=colour, alpha=0.15, linewidth=0)
        marker = {"marker": "o", "markersize": 3.5} if len(values) < 20 and not one.dashed else {}
        axes.plot(one.steps, values, label=one.label or "_", **style, **marker)
    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("step")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.set_xlim(left=0)
    if panel.percent:
        highest = max(scale * value for one in panel.lines for value in one.values)
        axes.set_ylim(0, min(100, 1.15 * highest) or 100)
        axes.yaxis.set_major_formatter("{x:g} %")
    if len(panel.lines) > 1:
        axes.legend(frameon=False, fontsize=7.5, labelcolor=TEXT, loc="best")


def write_curves(output: Path) -> Path:
    """OUTPUT/curves.png of the run in `output`."""
    path = output / "curves.png"
    rows = read_rows(output / "metrics.jsonl")
    draw(panels(rows), f"{output.name}, {rows[-1]['step']:,} steps", path)
    return path


if __name__ == "__main__":
    try:
        print(write_curves(Path(sys.argv[1])))
    except IndexError:
        sys.exit(__doc__)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
