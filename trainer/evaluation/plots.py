"""Plots of results as PNG files, with matplotlib. Colors suit light and dark pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.plots import COLORS, axes
from trainer.evaluation.analysis.drawing import shorten


def draw_bars(bars: Mapping[str, tuple[float, float]], path: Path) -> None:
    """Draw one bar per name: a share, with a mark at its chance level."""
    names = list(bars)[::-1]
    with axes(path, 7, 0.8 + 0.3 * len(names)) as ax:
        ax.barh(names, [100 * bars[name][0] for name in names], color=COLORS[0], height=0.65)
        ax.plot([100 * bars[name][1] for name in names], names, "|", color=COLORS[1], markersize=13, label="chance")
        for place, name in enumerate(names):
            ax.text(100 * bars[name][0] + 1, place, f"{100 * bars[name][0]:.1f}", va="center", fontsize=8)
        ax.set(xlim=(0, 108), xlabel="percent")
        ax.legend(frameon=False, loc="lower right")


def draw_curves(curves: Mapping[str, Mapping[int, float]], x_label: str, y_label: str, path: Path) -> None:
    """Draw shares over whole numbers on a logarithmic axis."""
    with axes(path, 6, 3.6) as ax:
        for color, (name, points) in zip(COLORS, curves.items(), strict=False):
            ax.plot(list(points), [100 * value for value in points.values()], "o-", color=color, ms=4, label=name)
        ticks = sorted({x for points in curves.values() for x in points})
        ax.set(xscale="log", xlabel=x_label, ylabel=y_label, ylim=(0, 102))
        ax.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=8)
        ax.minorticks_off()
        ax.grid(alpha=0.25)
        ax.legend([name.replace("_", " ") for name in curves], frameon=False)


def draw_confusion(table: Sequence[Sequence[int]], names: Sequence[str], path: Path) -> None:
    """Draw the shares of the predicted classes (columns) for each true class (rows)."""
    import numpy as np

    counts = np.array(table, float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = 2.2 + 0.24 * len(names)
    with axes(path, side + 0.8, side) as ax:
        image = ax.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
        short = [shorten(name, 24) for name in names]
        ax.set_xticks(range(len(names)), short, rotation=90, fontsize=7)
        ax.set_yticks(range(len(names)), short, fontsize=7)
        ax.set(xlabel="predicted", ylabel="true")
        ax.figure.colorbar(image, ax=ax, shrink=0.7, label="percent of the true class")
