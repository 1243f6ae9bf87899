"""Plots of the results. Without matplotlib, or without values, nothing is drawn."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from common.plots import COLORS, axes


def bars(path: Path, title: str, values: Mapping[str, float], unit: str) -> None:
    """Draw horizontal bars, the first one at the top."""
    if not values or not find_spec("matplotlib"):
        return
    with axes(path, 8, 1 + 0.3 * len(values)) as plot:
        plot.barh(list(values), list(values.values()), color=COLORS[0])
        plot.invert_yaxis()
        plot.set_title(title)
        plot.set_xlabel(unit)


def lines(path: Path, title: str, series: Mapping[str, Sequence[tuple[float, float]]], labels: tuple[str, str]) -> None:
    """Draw one line per series of points, with marks; `labels` are those of the axes."""
    if not any(series.values()) or not find_spec("matplotlib"):
        return
    with axes(path, 7, 4) as plot:
        for number, (name, points) in enumerate(series.items()):
            x, y = zip(*sorted(points), strict=True)
            plot.plot(x, y, "o-", label=name, color=COLORS[number % len(COLORS)])
        plot.set_title(title)
        plot.set_xlabel(labels[0])
        plot.set_ylabel(labels[1])
        plot.set_ylim(bottom=0)
        plot.legend()
