"""Compute the positions of histogram bars and ticks; charts.html draws them as SVG in the colours of the page."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pipeline.stages.score.filters import CLIP_SCORE_WEIGHT
from schemas.scores import CLIP_AXIS, SCORES
from schemas.stats import HistogramJson

WIDTH: Final = 360.0
HEIGHT: Final = 210.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 10.0, 12.0, 40.0
BASE: Final = HEIGHT - BOTTOM
MAX_BARS: Final = 40

ToX = Callable[[float], float]
"""Function from a value to its x coordinate in the SVG."""


@dataclass(frozen=True)
class Bar:
    """A bar in units of the SVG. `series` is the index of its series, `title` its tooltip."""

    x: float
    y: float
    width: float
    height: float
    series: int
    title: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A histogram ready to draw, in units of the SVG. Ticks are (coordinate, label).

    `threshold_x` is set only if there is a threshold within the range of the axis.
    """

    name: str
    title: str
    axis: str
    summary: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    bars: list[Bar]
    legend: list[str]
    threshold_x: float | None
    threshold_label: str
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = BASE


@dataclass(frozen=True)
class Style:
    """The texts of one histogram and the way it is drawn."""

    title: str
    axis: str
    note: str
    is_stacked: bool = True
    is_log: bool = False
    is_integer: bool = False  # each bin is one integer
    is_full_range: bool = False  # draw all bins, also empty ones at the ends

    @property
    def factor(self) -> float:
        """Factor of the values: the page shows CLIPScores, stats.json has cosines."""
        return CLIP_SCORE_WEIGHT if self.axis == CLIP_AXIS else 1.0


STYLES: Final = {
    "box_area_ratio": Style(
        "Box area", "box area / image area", "Fraction of the image that each box covers", is_full_range=True
    ),
    "boxes_per_image": Style(
        "Boxes per image", "kept boxes", "Number of kept boxes of each kept image", is_integer=True
    ),
    "caption_length": Style("Caption length", "characters", "Length of each cleaned caption"),
    **{s.histogram: Style(s.title or s.label, s.axis, s.note) for s in SCORES if s.histogram},
    "image_side": Style(
        "Image size", "pixels", "Sides of each downloaded image, before resizing", is_stacked=False, is_log=True
    ),
}


def histogram_chart(name: str, data: HistogramJson, threshold: float | None = None) -> Chart | None:
    """Return the chart of one histogram of stats.json, or None if it is empty; `threshold` is a value on its x axis."""
    style = STYLES[name]
    data = on_axis(data, style)
    series = list(data["counts"])
    edges, counts = trim(data["edges"], [data["counts"][s] for s in series], style)
    if not edges:
        return None
    heights = [sum(c) if style.is_stacked else max(c) for c in zip(*counts, strict=True)]
    y_ticks = nice_ticks(max(heights))
    scale, to_x = (HEIGHT - TOP - BOTTOM) / y_ticks[-1], x_scale(edges, style)
    is_on_axis = threshold is not None and edges[0] <= threshold <= edges[-1]
    return Chart(
        name=name,
        title=style.title,
        axis=style.axis,
        summary=summary(data, style),
        bars=list(draw_bars(edges, dict(zip(series, counts, strict=True)), style, to_x, scale)),
        x_ticks=x_ticks(edges, style, to_x),
        y_ticks=[(round(BASE - tick * scale, 2), short(tick)) for tick in y_ticks],
        legend=series if len(series) > 1 else [],
        threshold_x=to_x(threshold) if is_on_axis and threshold is not None else None,
        threshold_label=f"min {number(threshold)}" if threshold is not None else "",
    )


def on_axis(data: HistogramJson, style: Style) -> HistogramJson:
    """Return a histogram with edges and means in units of the axis. CLIPScores are 0 for negative cosines."""
    least = 0.0 if style.axis == CLIP_AXIS else -math.inf
    means = {name: None if mean is None else max(mean * style.factor, least) for name, mean in data["mean"].items()}
    edges = [round(edge * style.factor, 6) for edge in data["edges"]]
    first = next((i for i, edge in enumerate(edges) if edge >= least), 0)
    counts = {name: [sum(n[: first + 1]), *n[first + 1 :]] for name, n in data["counts"].items()}
    percentiles = {
        name: {percent: max(value * style.factor, least) for percent, value in values.items()}
        for name, values in data.get("percentiles", {}).items()
    }
    return {"edges": edges[first:], "counts": counts, "n": data["n"], "mean": means, "percentiles": percentiles}


def summary(data: HistogramJson, style: Style) -> str:
    """Return a sentence with the meaning of the histogram, and the facts about each series that is not empty."""
    names = {s: f"{s} " if len(data["counts"]) > 1 else "" for s in data["counts"] if data["n"][s]}
    facts = [
        f"{name}n = {data['n'][s]:,}, mean {number(data['mean'][s])}{percentiles_text(data, s)}"
        for s, name in names.items()
    ]
    return f"{style.note}; {'; '.join(facts)}."


def percentiles_text(data: HistogramJson, series: str) -> str:
    """Return the median of a series and the range of its middle 90 %; "" for statistics without percentiles."""
    found = data.get("percentiles", {}).get(series)
    return f", median {number(found['50'])} (90 %: {number(found['5'])} to {number(found['95'])})" if found else ""


def draw_bars(
    edges: Sequence[float], counts: Mapping[str, Sequence[int]], style: Style, to_x: ToX, scale: float
) -> Iterator[Bar]:
    """Yield a bar for each bin and series with a count, the series stacked or side by side.

    `scale` is the height of one count in units of the SVG.
    """
    n_columns = 1 if style.is_stacked else len(counts)  # bars side by side in a bin
    for i, (low, high) in enumerate(pairwise(edges)):
        x, width = to_x(low), (to_x(high) - to_x(low)) / n_columns
        gap = min(1.5, width * 0.15)
        label = number(low) if style.is_integer else f"{number(low)} to {number(high)}"
        base = BASE
        for j, (name, values) in enumerate(counts.items()):
            if not values[i]:
                continue
            height = values[i] * scale
            left = x if style.is_stacked else x + j * width
            yield Bar(
                x=round(left + gap / 2, 2),
                y=round(base - height, 2),
                width=round(width - gap, 2),
                height=round(height, 2),
                series=j,
                title=f"{label}: {values[i]:,}" + (f" {name}" if len(counts) > 1 else ""),
            )
            if style.is_stacked:
                base -= height


def trim(edges: Sequence[float], counts: Sequence[Sequence[int]], style: Style) -> tuple[list[float], list[list[int]]]:
    """Remove the empty bins at both ends, and merge neighbouring bins until there are at most MAX_BARS."""
    filled = [i for i, column in enumerate(zip(*counts, strict=True)) if any(column)]
    if not filled:
        return [], []
    first, last = max(filled[0] - 1, 0), min(filled[-1] + 1, len(edges) - 2)
    if style.is_full_range:
        first, last = 0, len(edges) - 2
    step = 1 if style.is_full_range else math.ceil((last - first + 1) / MAX_BARS)
    first -= first % step
    starts = list(range(first, last + 1, step))
    merged = [[sum(row[i : i + step]) for i in starts] for row in counts]
    return [edges[i] for i in starts] + [edges[min(starts[-1] + step, len(edges) - 1)]], merged


def x_scale(edges: Sequence[float], style: Style) -> ToX:
    """Return the function from a value to its x coordinate, on a linear or logarithmic axis."""

    def position(value: float) -> float:
        return math.log2(value) if style.is_log else value

    low, high = position(edges[0]), position(edges[-1])
    return lambda value: round(LEFT + (position(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT), 2)


def x_ticks(edges: Sequence[float], style: Style, to_x: ToX) -> list[tuple[float, str]]:
    """Return about six ticks: integers below the centres of their bars, powers of two, or round numbers."""
    if style.is_integer:
        step = math.ceil((len(edges) - 1) / 12)
        return [((to_x(a) + to_x(b)) / 2, number(a)) for a, b in zip(edges[:-1:step], edges[1::step], strict=False)]
    if style.is_log:
        powers = range(math.ceil(math.log2(edges[0])), math.floor(math.log2(edges[-1])) + 1)
        return [(to_x(2.0**p), number(2.0**p)) for p in powers]
    step_ = round_step((edges[-1] - edges[0]) / 6)
    first, last = math.ceil(edges[0] / step_ - 1e-9), math.floor(edges[-1] / step_ + 1e-9)
    return [(to_x(i * step_), number(i * step_)) for i in range(first, last + 1)]


def nice_ticks(highest: int) -> list[int]:
    """Return two to five integers in equal steps, from 0 to at least `highest`."""
    step = max(1, math.ceil(round_step(highest / 4)))
    return list(range(0, highest + step, step))


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * (1 - 1e-9))


def number(value: float | None) -> str:
    """Format a number with three significant digits and a thousands separator; "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def short(value: int) -> str:
    """Format a count with a unit: 12k for 12,000."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return str(value)
