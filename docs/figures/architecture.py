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


def draw(target: Path) -> None:
    """Draw the diagram."""
    figure = plt.figure(figsize=(16, 8.6), dpi=110, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 16)
    axes.set_ylim(0, 8.6)
    axes.axis("off")

    axes.text(0.35, 8.2, "pipeline/", fontsize=15, weight="bold", color=INK)
    axes.text(
        2.0,
        8.2,
        "each process takes one shard at a time; every stage maps an Arrow table to an Arrow table",
        fontsize=11,
        color=GREY,
    )
    box(axes, 0.35, 6.0, 1.75, 1.2, "input\nparquet, JSONL,\nCSV, tars", DISK)
    group(axes, 2.65, 5.65, 6.15, 1.9, "CPU workers")
    for i, text in enumerate(("read\nrows", "download\nimages", "captions\nclean text", "parse\ntree, phrases")):
        box(axes, 2.85 + 1.49 * i, 6.0, 1.3, 1.2, text, CPU)
    group(axes, 9.35, 5.65, 3.15, 1.9, "model workers (GPU)")
    for i, text in enumerate(("ground\nboxes", "score\nfilters")):
        box(axes, 9.55 + 1.49 * i, 6.0, 1.3, 1.2, text, MODEL)
    group(axes, 13.05, 5.65, 1.7, 1.9, "CPU workers")
    box(axes, 13.25, 6.0, 1.3, 1.2, "write\natomic commit", CPU)
    arrow(axes, (2.1, 6.6), (2.85, 6.6))
    for i in range(3):
        arrow(axes, (4.15 + 1.49 * i, 6.6), (4.34 + 1.49 * i, 6.6))
    arrow(axes, (8.62, 6.6), (9.55, 6.6))
    arrow(axes, (10.85, 6.6), (11.04, 6.6))
    arrow(axes, (12.34, 6.6), (13.25, 6.6))

    axes.text(0.35, 4.32, "files", fontsize=15, weight="bold", color=INK, va="center")
    box(
        axes,
        2.65,
        3.75,
        8.7,
        1.15,
        "shards\ntrain/  grit/  arrow/ with every dropped row and its reason  _manifests/ (schemas/ declares all of it)",
        DISK,
    )
    arrow(axes, (13.5, 5.65), (10.6, 4.9))
    box(axes, 12.35, 3.75, 2.4, 1.15, "report\nstats.json, report.html", USE)
    arrow(axes, (11.35, 4.32), (12.35, 4.32))

    axes.text(0.35, 2.02, "trainer/", fontsize=15, weight="bold", color=INK, va="center")
    axes.text(3.75, 3.0, "one loop for all models; the model declares what it needs", fontsize=11, color=GREY)
    steps = (
        ("data\norder by seed", TRAIN), ("encoders\nimage, text", TRAIN), ("lift\nhyperbolic space", TRAIN),
        ("losses\ncontrast, cones", TRAIN), ("optimizer\ncheckpoints", TRAIN),
    )  # fmt: skip
    for i, (text, colour) in enumerate(steps):
        box(axes, 2.65 + 1.86 * i, 1.45, 1.6, 1.15, text, colour)
        if i:
            arrow(axes, (2.65 + 1.86 * i - 0.26, 2.02), (2.65 + 1.86 * i, 2.02))
    arrow(axes, (3.45, 3.75), (3.45, 2.6))
    box(axes, 12.35, 1.45, 2.4, 1.15, "model/\nsafetensors, config", DISK)
    arrow(axes, (11.69, 2.02), (12.35, 2.02))
    box(axes, 9.4, 0.15, 2.6, 0.85, "evaluation\ntrainer.evaluate", USE, 10.5)
    box(axes, 12.35, 0.15, 2.4, 0.85, "Python API\nload_model", USE, 10.5)
    arrow(axes, (12.7, 1.45), (11.3, 1.0))
    arrow(axes, (13.55, 1.45), (13.55, 1.0))
    axes.plot([14.75, 15.35, 15.35, 11.69], [2.02, 2.02, 8.0, 8.0], color=INK, lw=1.5, ls=(0, (5, 3)))
    arrow(axes, (11.69, 8.0), (11.69, 7.2))
    axes.text(
        15.45, 5.0, "a trained model can score: scorer=FOLDER", fontsize=9.5, color=GREY, rotation=90, va="center"
    )
    figure.savefig(target)
    plt.close(figure)
