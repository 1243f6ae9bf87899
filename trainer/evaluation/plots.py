"""Plots of results as PNG files, with matplotlib. Colors suit light and dark pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.plots import COLORS, axes
from trainer.evaluation.task import ImageSource

# Figures of the analyses as PNG files. Colors and markers also differ in gray and for color-blind readers.

GROUP_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")
"""The palette of Okabe and Ito."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLES: Final = ("-", "--", "-.", ":")
MAX_LABEL: Final = 60
BINS: Final = 60

Array = NDArray[np.float64]


def shorten(text: str, length: int = MAX_LABEL) -> str:
    """A text in one line of limited length, without the formulas that matplotlib reads between dollar signs."""
    line = " ".join(text.split())
    return (line if len(line) <= length else f"{line[: length - 1]}…").replace("$", r"\$")


def look(number: int) -> tuple[str, str, str]:
    """The color, the style of lines and the marker of a group."""
    return tuple(kinds[number % len(kinds)] for kinds in (GROUP_COLORS, STYLES, MARKERS))  # type: ignore[return-value]


def draw_histograms(groups: Mapping[str, Array], x_label: str, path: Path) -> None:
    """Draw the distributions of several groups of numbers as steps with a smooth curve, in percent of each group."""
    values = np.concatenate(list(groups.values()))
    low, high = np.quantile(values, [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    centers = (edges[1:] + edges[:-1]) / 2
    with axes(path, 7, 4) as ax:
        for number, (name, group) in enumerate(groups.items()):
            shares = 100 * np.histogram(group, edges)[0] / max(1, len(group))
            color, style, _ = look(number)
            ax.stairs(shares, edges, fill=True, color=color, alpha=0.16)
            ax.plot(centers, gaussian_smooth(shares), style, color=color, lw=2, label=f"{name} ({len(group):,})")
        ax.set(xlabel=x_label, ylabel="percent of the group", ylim=(0, None))
        ax.figure.legend(frameon=False, loc="outside upper center", ncols=len(groups), fontsize=9)
        ax.grid(alpha=0.25)


def gaussian_smooth(values: Array) -> Array:
    """Values smoothed by a normal distribution of 1.5 bins; sums at the ends are kept."""
    kernel = np.exp(-0.5 * (np.arange(-7, 8) / 1.5) ** 2)
    weights = np.convolve(np.ones_like(values), kernel, "same")
    smoothed: Array = np.convolve(values, kernel, "same") / weights
    return smoothed


Point = tuple[float, float]


def draw_disk(
    groups: Mapping[str, Array],
    path: Path,
    labels: Mapping[str, Sequence[str]] | None = None,
    edges: Sequence[tuple[Point, Point]] = (),
) -> None:
    """Draw points [n 2] of the unit disk by group. + marks the origin, and the dark circle the boundary at infinity.

    `labels` are the texts of points, by group; `edges` are drawn as lines.

    If all points are near the origin, only the part around them is drawn.
    """
    farthest = max((float(np.linalg.norm(points, axis=1).max(initial=0)) for points in groups.values()), default=0)
    limit = min(1.04, max(0.05, 1.2 * farthest))
    with axes(path, 6.6, 6.2) as ax:
        angle = np.linspace(0, 2 * np.pi, 400)
        ax.plot(np.cos(angle), np.sin(angle), color="#666666", lw=1)
        for radius in (0.1, 0.25, 0.5, 1.0, 2.0, 3.0):
            norm = np.tanh(radius / 2)
            if limit / 5 < norm < limit:
                ax.plot(norm * np.cos(angle), norm * np.sin(angle), color="#cccccc", lw=0.6, zorder=0)
                style = {"fontsize": 7, "color": "#777777", "ha": "center", "va": "center", "backgroundcolor": "w"}
                ax.text(0, -norm, f"{radius:g}", **style, zorder=0.5)  # below the points
        ax.plot([0], [0], "+", color="#444444", ms=11)
        for start, end in edges:
            ax.plot(*zip(start, end, strict=True), color="#999999", lw=0.7, alpha=0.7, zorder=0)
        for number, (name, points) in enumerate(groups.items()):
            color, _, marker = look(number)
            ax.scatter(points[:, 0], points[:, 1], 16, color, marker=marker, alpha=0.6, linewidths=0, label=name)
            for text, (x, y) in zip((labels or {}).get(name, ()), points, strict=False):
                ax.annotate(shorten(text, 24), (x, y), (3, 3), textcoords="offset points", fontsize=6)
        ax.set_aspect("equal")
        ax.set(xlim=(-limit, limit), ylim=(-limit, limit), xticks=[], yticks=[])
        part = "" if limit > 1 else f", the part within norm {limit:.2f}"
        ax.set_xlabel(f"Poincaré disk{part}; gray circles: distance from the origin", fontsize=9)
        ax.spines[["left", "bottom"]].set_visible(False)
        ax.legend(frameon=True, framealpha=0.9, loc="upper left", fontsize=8)


def draw_paths(paths: Mapping[str, Sequence[str]], x_label: str, path: Path) -> None:
    """Draw the nearest text of each step of several paths: one bar for each run of equal texts.

    The texts of the steps are in order, from the left end of the x axis.
    """
    rows: list[tuple[str, str, int, int, int]] = []  # path, text, first step, length, number of the path
    for number, (name, texts) in enumerate(paths.items()):
        start = 0
        for step in range(1, len(texts) + 1):
            if step == len(texts) or texts[step] != texts[start]:
                rows.append((name, texts[start], start, step - start, number))
                start = step
    n_steps = max(len(texts) for texts in paths.values())
    with axes(path, 9, 1.2 + 0.24 * (len(rows) + len(paths))) as ax:
        places, labels, place = [], [], 0.0
        for index, (name, text, start, length, number) in enumerate(rows):
            if index == 0 or rows[index - 1][0] != name:
                place += 1.0
                title = ax.text(0, place - 0.15, shorten(name), fontsize=9, fontweight="bold", va="center")
                title.set_in_layout(False)  # a long title must not shrink the axes
                place += 1.0
            ax.barh(place, length, left=start, height=0.75, color=look(number)[0])
            places.append(place)
            labels.append(shorten(text))
            place += 1.0
        ax.set_yticks(places, labels, fontsize=8)
        ax.set(ylim=(place - 0.3, 0.3), xlim=(0, n_steps), xlabel=x_label)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)


def draw_roc(curves: Mapping[str, tuple[Array, Array]], aucs: Mapping[str, float], path: Path) -> None:
    """Draw the shares of mismatched (x) and true pairs (y) that score above each threshold."""
    with axes(path, 5.2, 4.8) as ax:
        ax.plot([0, 100], [0, 100], ":", color="#777777", lw=1, label="chance")
        for number, (name, (false_share, true_share)) in enumerate(curves.items()):
            color, style, _ = look(number)
            ax.plot(100 * false_share, 100 * true_share, style, color=color, label=f"{name}: {100 * aucs[name]:.1f} %")
        ax.set(xlabel="mismatched pairs accepted, percent", ylabel="true pairs accepted, percent")
        ax.set(xlim=(0, 100), ylim=(0, 101))
        ax.set_aspect("equal")
        ax.grid(alpha=0.25)
        ax.legend(frameon=False, fontsize=8, title="area under the curve (A > B: A entails B)", title_fontsize=8)


def draw_norms(rows: Mapping[str, Array], peaks: Mapping[str, int], path: Path) -> None:
    """Draw the norms [k] of several texts by factor, one panel for each; dashed lines mark the factors in `peaks`."""
    from matplotlib.figure import Figure

    highest = 1.08 * max(float(values.max()) for values in rows.values())
    with axes(path, 8, 0.8 + 1.25 * len(rows)) as first:
        figure: Figure = first.figure
        first.remove()
        panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
        for number, (ax, (name, values)) in enumerate(zip(panels, rows.items(), strict=True)):
            ax.spines[["top", "right"]].set_visible(False)
            ax.bar(range(len(values)), values, color="#999999", width=0.85)
            for index, (concept, factor) in enumerate(peaks.items()):
                color = look(index)[0]
                ax.bar([factor], [values[factor]], color=color, width=0.85)
                ax.axvline(factor, color=color, lw=1, ls=STYLES[1 + index % 3], label=shorten(f"peak of {concept}", 40))
            ax.set(ylim=(0, highest))
            ax.set_title(name, fontsize=9, loc="left")
            if number == 0 and peaks:
                ax.legend(frameon=False, fontsize=7, loc="upper right", ncols=len(peaks), bbox_to_anchor=(1, 1.4))
        panels[-1].set_xlabel("factor")
        figure.supylabel("distance to the origin", fontsize=9)


def draw_factor_medians(groups: Mapping[str, Array], path: Path) -> None:
    """Draw the median distance to the origin of several groups [k] by factor; factors are in order of the first."""
    order = np.argsort(next(iter(groups.values())))[::-1]
    with axes(path, 7.5, 3.8) as ax:
        for number, (name, medians) in enumerate(groups.items()):
            color, style, marker = look(number)
            ax.plot(medians[order], linestyle=style, marker=marker, ms=4, color=color, label=name)
        step = max(1, len(order) // 32)
        ax.set_xticks(range(0, len(order), step), [str(factor) for factor in order[::step]], fontsize=7, rotation=90)
        ax.set(xlabel="factor", ylabel="median distance to the origin", ylim=(0, None))
        ax.grid(alpha=0.25)
        ax.legend(frameon=False)


def draw_pictures(rows: Mapping[str, Sequence[ImageSource]], path: Path) -> None:
    """Draw the images of several shards' samples, one row for each group."""
    from matplotlib.figure import Figure

    n_columns = max(map(len, rows.values()))
    with axes(path, 1.4 * n_columns, 1.5 * len(rows)) as first:
        figure: Figure = first.figure
        first.remove()
        for line, (name, sources) in zip(
            figure.subplots(len(rows), n_columns, squeeze=False), rows.items(), strict=True
        ):
            for ax in line:
                ax.axis("off")
            for ax, source in zip(line, sources, strict=False):
                assert source.stack is not None
                assert source.index is not None
                ax.imshow(source.stack[source.index])
            line[0].set_title(name, fontsize=9, loc="left")


def draw_boxes(groups: Mapping[str, Array], x_label: str, path: Path) -> None:
    """Draw the distributions of many groups of numbers as boxes: quartiles, with whiskers to the 5 % and 95 % quantiles."""
    with axes(path, 7, 1.1 + 0.33 * len(groups)) as ax:
        ax.boxplot(
            list(groups.values()),
            orientation="horizontal",
            widths=0.6,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": "#cfe3f3", "edgecolor": GROUP_COLORS[0]},
            medianprops={"color": GROUP_COLORS[1], "lw": 2},
        )
        ax.set_yticks(range(1, len(groups) + 1), [f"{name} ({len(group)})" for name, group in groups.items()])
        ax.tick_params(axis="y", labelsize=8, length=0)
        ax.invert_yaxis()
        ax.set(xlabel=x_label)
        ax.grid(axis="x", alpha=0.25)


def draw_heat(values: Array, rows: Sequence[str], columns: Sequence[str], label: str, path: Path) -> None:
    """Draw a table [r c] as colors, from blue below zero to red above it; columns are factors."""
    highest = max(float(np.abs(values).max()), 1e-9)
    with axes(path, max(6.0, 2.6 + 0.13 * len(columns)), 1.4 + 0.3 * len(rows)) as ax:
        image = ax.imshow(values, cmap="RdBu_r", vmin=-highest, vmax=highest, aspect="auto", interpolation="nearest")
        ax.set_yticks(range(len(rows)), rows, fontsize=8)
        ax.set_xticks(range(len(columns)), columns, fontsize=8 if len(columns) <= 24 else 5.5, rotation=90)
        ax.set(xlabel="factor, by the row with the largest value")
        ax.figure.colorbar(image, ax=ax, shrink=0.9).set_label(label, fontsize=7)


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
