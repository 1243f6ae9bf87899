"""Histograms and bars as plain numbers; charts.html turns them into SVG that follows the page's light or dark colours."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

WIDTH: Final = 360.0
HEIGHT: Final = 210.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 10.0, 12.0, 40.0
MAX_BARS: Final = 40

Across = Callable[[float], float]
"""From a value on the x axis to its position in the SVG."""


@dataclass(frozen=True)
class Bar:
    """A bar of series number `series`, in units of the SVG; `title` is what hovering tells."""

    x: float
    y: float
    width: float
    height: float
    series: int
    title: str


@dataclass(frozen=True)
class Chart:
    """A histogram ready to draw. Ticks are (position, label); `mark` is the position of a threshold."""

    name: str
    title: str
    axis: str
    summary: str
    bars: list[Bar]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    legend: list[str]
    mark: float | None
    mark_label: str
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Look:
    """How one histogram of stats.json is shown."""

    title: str
    axis: str
    note: str
    is_stacked: bool = True
    is_log: bool = False
    is_whole: bool = False  # each bin is one whole number
    is_full: bool = False  # the whole range is shown, however empty


LOOKS: Final = {
    "box_area_ratio": Look(
        "Box area", "box area / image area", "share of the image that a box covers (paper 003, figure 4)", is_full=True
    ),
    "boxes_per_image": Look("Boxes per image", "kept boxes", "kept images by the number of their boxes", is_whole=True),
    "caption_length": Look("Caption length", "characters", "cleaned captions by their number of characters"),
    "grounding_score": Look("Grounding score", "score", "confidence of every box above the grounder's floor"),
    "clip_cosine": Look("CLIP, crop against phrase", "cosine", "boxes that reached the CLIP filter"),
    "clip_similarity": Look("CLIP, image against caption", "cosine", "whole image against whole caption"),
    "image_side": Look("Image size", "pixels", "sides of the images as they arrived", is_stacked=False, is_log=True),
}


def histogram_chart(name: str, data: Mapping[str, Any], mark: float | None = None) -> Chart | None:
    """The chart of one histogram of stats.json, None if it counted nothing; `mark` is a threshold on its axis."""
    look = LOOKS[name]
    series = list(data["counts"])
    edges, counts = trim(data["edges"], [data["counts"][s] for s in series], look)
    if not edges:
        return None
    low, high = position(edges[0], look), position(edges[-1], look)
    heights = [sum(c) if look.is_stacked else max(c) for c in zip(*counts, strict=True)]
    y_ticks = nice_ticks(max(heights))
    scale = (HEIGHT - TOP - BOTTOM) / y_ticks[-1]

    def across(value: float) -> float:
        return round(LEFT + (position(value, look) - low) / (high - low) * (WIDTH - LEFT - RIGHT), 2)

    is_marked = mark is not None and edges[0] <= mark <= edges[-1]
    return Chart(
        name=name,
        title=look.title,
        axis=look.axis,
        summary=summary(data, look),
        bars=list(draw_bars(edges, dict(zip(series, counts, strict=True)), look, across, scale)),
        x_ticks=x_ticks(edges, look, across),
        y_ticks=[(round(HEIGHT - BOTTOM - tick * scale, 2), short(tick)) for tick in y_ticks],
        legend=series if len(series) > 1 else [],
        mark=across(mark) if is_marked and mark is not None else None,
        mark_label=f"limit {number(mark)}" if mark is not None else "",
    )


def summary(data: Mapping[str, Any], look: Look) -> str:
    """What the histogram shows, and number and mean of each series that counted something."""
    names = {s: f"{s} " if len(data["counts"]) > 1 else "" for s in data["counts"] if data["n"][s]}
    facts = [f"{name}n = {data['n'][s]:,}, mean {number(data['mean'][s])}" for s, name in names.items()]
    return f"{look.note[0].upper()}{look.note[1:]}; {'; '.join(facts)}."


def draw_bars(
    edges: Sequence[float], counts: Mapping[str, Sequence[int]], look: Look, across: Across, scale: float
) -> Iterator[Bar]:
    """A bar for each bin and series that counted something, the series on top of each other or side by side.

    `scale` is the height of one count, in units of the SVG.
    """
    share = 1 if look.is_stacked else len(counts)  # bars beside each other in a bin
    for i, (low, high) in enumerate(pairwise(edges)):
        x, width = across(low), (across(high) - across(low)) / share
        gap = min(1.5, width * 0.15)
        span = number(low) if look.is_whole else f"{number(low)} to {number(high)}"
        floor = HEIGHT - BOTTOM
        for j, (name, values) in enumerate(counts.items()):
            if not values[i]:
                continue
            height = values[i] * scale
            left = x if look.is_stacked else x + j * width
            yield Bar(
                x=round(left + gap / 2, 2),
                y=round(floor - height, 2),
                width=round(width - gap, 2),
                height=round(height, 2),
                series=j,
                title=f"{span}: {values[i]:,}" + (f" {name}" if len(counts) > 1 else ""),
            )
            if look.is_stacked:
                floor -= height


def trim(edges: Sequence[float], counts: Sequence[Sequence[int]], look: Look) -> tuple[list[float], list[list[int]]]:
    """Without empty bins at both ends, and with so many neighbours joined that MAX_BARS are enough."""
    filled = [i for i, column in enumerate(zip(*counts, strict=True)) if any(column)]
    if not filled:
        return [], []
    first, last = (0, len(edges) - 2) if look.is_full else (max(filled[0] - 1, 0), min(filled[-1] + 1, len(edges) - 2))
    step = 1 if look.is_full else math.ceil((last - first + 1) / MAX_BARS)
    first -= first % step
    starts = list(range(first, last + 1, step))
    joined = [[sum(row[i : i + step]) for i in starts] for row in counts]
    return [edges[i] for i in starts] + [edges[min(starts[-1] + step, len(edges) - 1)]], joined


def position(value: float, look: Look) -> float:
    """A value as far along its axis as it is drawn, before the axis is scaled to the chart."""
    return math.log2(value) if look.is_log else value


def x_ticks(edges: Sequence[float], look: Look, across: Across) -> list[tuple[float, str]]:
    """About six labelled positions: whole numbers under the middle of their bar, powers of two, or round figures."""
    if look.is_whole:
        step = math.ceil((len(edges) - 1) / 12)
        return [((across(a) + across(b)) / 2, number(a)) for a, b in zip(edges[:-1:step], edges[1::step], strict=False)]
    if look.is_log:
        powers = range(math.ceil(math.log2(edges[0])), math.floor(math.log2(edges[-1])) + 1)
        return [(across(2.0**p), number(2.0**p)) for p in powers]
    step_ = round_step((edges[-1] - edges[0]) / 6)
    first, last = math.ceil(edges[0] / step_ - 1e-9), math.floor(edges[-1] / step_ + 1e-9)
    return [(across(i * step_), number(i * step_)) for i in range(first, last + 1)]


def nice_ticks(highest: int) -> list[int]:
    """Whole numbers from 0 in equal steps to at least `highest`, four or five of them."""
    step = max(1, math.ceil(round_step(highest / 4)))
    return list(range(0, highest + step, step))


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * (1 - 1e-9))


def number(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def short(value: int) -> str:
    """12,000 as 12k."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return str(value)
