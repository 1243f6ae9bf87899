"""The diagram of docs/architecture.md."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, GREY = "#1f2933", "#7b8794"
CPU, MODEL, DISK, TRAIN, USE = "#d8ecf3", "#fbe3c8", "#eceff2", "#e3dcf2", "#dcefdc"


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str, size: float = 11) -> None:
    """Draw a rounded box; the first line of its text is bold."""
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=colour, ec="#9aa5b1", lw=1.2))
    head, _, rest = text.partition("\n")
    n_rest = rest.count("\n") + 1 if rest else 0
    axes.text(
        x + width / 2, y + height / 2 + 0.13 * n_rest, head,
        ha="center", va="center", fontsize=size, color=INK, weight="bold",
    )  # fmt: skip
    if rest:
        axes.text(
            x + width / 2, y + height / 2 - 0.16, rest,
            ha="center", va="center", fontsize=size - 2, color="#3e4c59", linespacing=1.35,
        )  # fmt: skip


def group(axes: Axes, x: float, y: float, width: float, height: float, text: str) -> None:
    """Draw a dashed frame around boxes that run in the same process."""
    style = "round,pad=0,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc="none", ec=GREY, lw=1.1, ls=(0, (4, 3))))
    axes.text(x + 0.12, y + height + 0.1, text, fontsize=10, color=GREY, va="bottom")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str = "", bend: float = 0.0) -> None:
    """Draw an arrow with an optional label at its middle."""
    style = f"arc3,rad={bend}"
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=15, lw=1.5, color=INK, connectionstyle=style)
    )
    if text:
        axes.text((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.12, text, ha="center", fontsize=9.5, color=GREY)


def head(axes: Axes, x: float, y: float, name: str, folder: str) -> None:
    """Write one of the nouns, and the folder where its code is."""
    axes.text(x, y, name, fontsize=14, weight="bold", color=INK, va="bottom")
    axes.text(x, y - 0.08, folder, fontsize=10, color=GREY, va="top", family="monospace")


def draw_pipeline(axes: Axes) -> None:
    """Draw the way of a row: source, stages, output."""
    group(axes, 0.3, 4.55, 15.4, 3.95, "")
    axes.text(0.55, 8.12, "run(source, stages, output)", fontsize=14, weight="bold", color=INK, family="monospace")
    axes.text(
        4.35, 8.13, "pipeline/run/: the loop over shards, in child processes or on Ray. A shard is a fixed range of rows.",
        fontsize=11, color=GREY,
    )  # fmt: skip
    head(axes, 0.55, 7.35, "Source", "pipeline/read/")
    box(axes, 0.55, 5.55, 2.0, 1.25, "rows\nparquet, JSON, CSV,\ntars, folders", DISK)
    head(axes, 3.25, 7.35, "Stages", "pipeline/stages/")
    stages = (
        ("download\nimages", CPU), ("captions\nclean text", CPU), ("parse\ntree, phrases", CPU),
        ("ground\nboxes", MODEL), ("score\nfilters", MODEL),
    )  # fmt: skip
    for i, (text, colour) in enumerate(stages):
        x = 3.25 + 1.72 * i
        box(axes, x, 5.55, 1.47, 1.25, text, colour)
        arrow(axes, (x - (0.7 if i == 0 else 0.25), 6.17), (x, 6.17))
        arrow(axes, (x + 0.73, 5.55), (x + 0.73, 5.05))
    axes.text(
        3.25, 4.74, "every stage may drop a row: it stays in the table with stage, reason and detail",
        fontsize=10, color=GREY,
    )  # fmt: skip
    head(axes, 12.3, 7.35, "Output", "pipeline/output/")
    box(
        axes,
        12.3,
        5.2,
        3.15,
        1.75,
        "shards\ntrain/  grit/  arrow/\narrow/ has all rows, dropped ones too\nmanifest, written last",
        DISK,
    )
    arrow(axes, (11.6, 6.17), (12.3, 6.17))


def draw_readers(axes: Axes) -> None:
    """Draw what reads an output: the other verbs, the report and the trainer."""
    box(axes, 13.0, 3.05, 2.45, 0.95, "report, explorer\nexplore, quality", USE)
    arrow(axes, (14.2, 5.2), (14.2, 4.0))
    box(
        axes,
        3.25,
        3.05,
        7.6,
        0.95,
        "verbs on a finished output, through the same loop\nrewrite, takedown, verify, run retry=true",
        CPU,
    )
    arrow(axes, (12.3, 5.2), (10.85, 3.8))
    arrow(axes, (3.25, 3.52), (1.55, 5.55), bend=-0.25)
    axes.text(0.55, 3.3, "a finished output\nis a source too", fontsize=10, color=GREY)
    axes.text(0.55, 1.68, "trainer/", fontsize=14, weight="bold", color=INK, va="center")
    steps = (
        "data\norder by seed",
        "encoders\nimage, text",
        "lift\nhyperbolic space",
        "losses\ncontrast, cones",
        "optimizer\ncheckpoints",
    )
    for i, text in enumerate(steps):
        box(axes, 2.3 + 1.8 * i, 1.15, 1.55, 1.1, text, TRAIN)
        if i:
            arrow(axes, (2.3 + 1.8 * i - 0.25, 1.7), (2.3 + 1.8 * i, 1.7))
    axes.plot([12.65, 12.65, 3.07], [5.2, 2.62, 2.62], color=INK, lw=1.5)
    arrow(axes, (3.07, 2.62), (3.07, 2.25))
    box(axes, 12.3, 1.15, 3.15, 1.1, "model/\nevaluate, export, load_model", DISK)
    arrow(axes, (11.05, 1.7), (12.3, 1.7))
    axes.text(
        2.3,
        0.72,
        "one loop for all models; a model lists its terms and the data that it needs",
        fontsize=10,
        color=GREY,
    )


def draw(target: Path) -> None:
    """Draw the diagram."""
    figure = plt.figure(figsize=(16, 8.7), dpi=110, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 16)
    axes.set_ylim(0.4, 9.0)
    axes.axis("off")
    draw_pipeline(axes)
    draw_readers(axes)
    for x, colour, text in ((0.55, CPU, "CPU workers"), (2.1, MODEL, "model workers (GPU)"), (4.4, DISK, "files")):
        axes.add_patch(FancyBboxPatch((x, 0.46), 0.22, 0.14, boxstyle="square,pad=0", fc=colour, ec="#9aa5b1"))
        axes.text(x + 0.32, 0.53, text, fontsize=9.5, color=GREY, va="center")
    figure.savefig(target)
    plt.close(figure)
