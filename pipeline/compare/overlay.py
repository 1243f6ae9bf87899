"""The histograms of two outputs, laid over each other as shares, so that outputs of different sizes can be compared."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    STYLES,
    TOP,
    WIDTH,
    Style,
    ToX,
    axis_position,
    number,
    on_axis,
    round_step,
    trim,
    x_ticks,
)
from schemas.stats import HistogramJson, Statistics

BASE = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Overlay:
    """A chart in units of its SVG: two outlines, and for each bin (x, width, tooltip)."""

    name: str
    title: str
    axis: str
    summary: str
    outlines: tuple[str, str]
    bins: list[tuple[float, float, str]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = BASE


def overlays(a: Statistics, b: Statistics) -> Iterator[Overlay]:
    """Yield a chart for each series of the histograms that has values in both outputs."""
    for name, style in STYLES.items():
        ours, theirs = a["histograms"].get(name), b["histograms"].get(name)
        if not ours or not theirs or ours["edges"] != theirs["edges"]:
            continue
        for series in ours["counts"]:
            if ours["n"].get(series) and theirs["n"].get(series):
                yield overlay(name, series, style, on_axis(ours, style), on_axis(theirs, style))


def overlay(name: str, series: str, style: Style, a: HistogramJson, b: HistogramJson) -> Overlay:
    """Return the chart of one series, which has values in both."""
    edges, counts = trim(a["edges"], [a["counts"][series], b["counts"][series]], style)
    shares = [[n / sum(values) for n in values] for values in counts]
    low, high = axis_position(edges[0], style), axis_position(edges[-1], style)
    ticks = share_ticks(max(max(values) for values in shares))

    def to_x(value: float) -> float:
        return round(LEFT + (axis_position(value, style) - low) / (high - low) * (WIDTH - LEFT - RIGHT), 2)

    def to_y(value: float) -> float:
        return round(BASE - value / ticks[-1] * (BASE - TOP), 2)

    facts = (f"{label}: n = {h['n'][series]:,}, mean {number(h['mean'][series])}" for label, h in (("A", a), ("B", b)))
    return Overlay(
        name=f"{name}-{series}",
        title=f"{style.title}: {series}" if len(a["counts"]) > 1 else style.title,
        axis=style.axis,
        summary="; ".join(facts),
        outlines=(outline(edges, shares[0], to_x, to_y), outline(edges, shares[1], to_x, to_y)),
        bins=[
            (
                to_x(left),
                round(to_x(right) - to_x(left), 2),
                f"{number(left) if style.is_integer else f'{number(left)} to {number(right)}'}: A {x:.1%}, B {y:.1%}",
            )
            for (left, right), x, y in zip(pairwise(edges), *shares, strict=True)
        ],
        x_ticks=x_ticks(edges, style, to_x),
        y_ticks=[(to_y(tick), f"{100 * tick:g} %") for tick in ticks],
    )


def outline(edges: Sequence[float], shares: Sequence[float], to_x: ToX, to_y: ToX) -> str:
    """Return the path of the steps of a histogram."""
    steps = (f"V{to_y(value)}H{to_x(right)}" for value, right in zip(shares, edges[1:], strict=True))
    return f"M{to_x(edges[0])} {BASE}{''.join(steps)}V{BASE}"


def share_ticks(highest: float) -> list[float]:
    """Return two to six shares in equal steps, from 0 to at least `highest`."""
    step = round_step(highest / 4)
    return [round(i * step, 6) for i in range(math.ceil(highest / step - 1e-9) + 1)]
