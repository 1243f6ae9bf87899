"""A picture of a hierarchy around the root of a space: every item is drawn at its distance from the root."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.images import Image
from hypergrit_common.plots import axes
from trainer.evaluation.plots import GROUP_COLORS, shorten

SIDE_IN: Final = 7.0
THUMBNAIL_PX: Final = 56
LINE_LENGTH: Final = 24
LABEL_LENGTH: Final = 120
SPREAD: Final = 0.5
"""Share of a sector's angle over which its items are spread."""

BEND: Final = 0.7
"""Distance from the root of the point towards which a line bends, as a share of that of its straight middle."""
CLEARANCE: Final = 0.4
"""The least of that distance, as a share of the distance of the outer end."""

Array = NDArray[np.float64]


class Item(NamedTuple):
    """A point of the space: an image, or a text."""

    label: str
    group: str  # as in the legend
    distance: float  # from the root
    sector: int  # items of the same sector are drawn side by side
    image: Image | None = None  # RGB [h w 3], drawn instead of the label


class Link(NamedTuple):
    """Two items by number, of which the first should entail the second, and whether it does."""

    general: int
    specific: int
    holds: bool


def draw_radial(items: Sequence[Item], links: Sequence[Link], path: Path) -> None:
    """Draw items around the root. Only the distance from the root has a meaning; directions are chosen to be readable.

    Lines join items of which the first should entail the second; they are solid where it does, else dashed.
    """
    places = positions(items)
    limit = 1.22 * max((item.distance for item in items), default=1.0)
    groups = list(dict.fromkeys(item.group for item in items))
    with axes(path, SIDE_IN, SIDE_IN) as ax:
        draw_rings(ax, limit, math.pi / 2 + math.pi / max(1, len({item.sector for item in items})))
        for link in links:
            xs, ys = curve(places[link.general], places[link.specific])
            ax.plot(xs, ys, "-" if link.holds else ":", color="#555555", lw=1.3, alpha=0.7, zorder=1)
        for item, place in zip(items, places, strict=True):
            draw_item(ax, item, place, GROUP_COLORS[groups.index(item.group) % len(GROUP_COLORS)])
        handles = [
            ax.plot([], [], "s", color=GROUP_COLORS[n % len(GROUP_COLORS)], label=name)[0]
            for n, name in enumerate(groups)
        ]
        handles += [ax.plot([], [], style, color="#555555", label=name)[0] for style, name in LINES.items()]
        ax.legend(handles=handles, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3)
        ax.set(xlim=(-limit, limit), ylim=(-limit, limit), xticks=[], yticks=[], aspect="equal")
        ax.spines[["left", "bottom"]].set_visible(False)


LINES: Final = {"-": "entails", ":": "should entail, but does not"}


def positions(items: Sequence[Item]) -> list[tuple[float, float]]:
    """The place (x, y) of each item: sectors clockwise from above, with the items of a sector side by side.

    The order of the items is reversed in the second half of the sectors, which makes lines between them shorter.
    """
    sectors = sorted({item.sector for item in items})
    width = 2 * math.pi / max(1, len(sectors))
    places = []
    for number, item in enumerate(items):
        mates = [other for other, mate in enumerate(items) if mate.sector == item.sector]
        offset = (mates.index(number) - (len(mates) - 1) / 2) * SPREAD * width / max(1, len(mates) - 1)
        place = sectors.index(item.sector)
        angle = math.pi / 2 - place * width + (offset if 2 * place >= len(sectors) else -offset)
        places.append((item.distance * math.cos(angle), item.distance * math.sin(angle)))
    return places


def curve(start: tuple[float, float], end: tuple[float, float]) -> tuple[Array, Array]:
    """Points (x, y) of a curve between two places (a quadratic Bezier), which bends towards the root but misses it."""
    first, last = math.atan2(start[1], start[0]), math.atan2(end[1], end[0])
    turn = (last - first + math.pi) % (2 * math.pi) - math.pi
    near, far = sorted((math.hypot(*start), math.hypot(*end)))
    distance = max(BEND * (near + far) / 2 * math.cos(turn / 2), CLEARANCE * far)
    middle = first + turn / 2
    control = distance * math.cos(middle), distance * math.sin(middle)
    t = np.linspace(0, 1, 40)
    xs, ys = np.array([start, control, end]).T @ np.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2])
    return xs, ys


def draw_rings(ax: Any, limit: float, direction: float) -> None:
    """Mark the root, and draw circles of equal distance from it, with their distances in a direction in radians."""
    from matplotlib.ticker import MaxNLocator

    angle = np.linspace(0, 2 * np.pi, 200)
    for radius in MaxNLocator(5).tick_values(0, limit):
        if 0 < radius < limit:
            ax.plot(radius * np.cos(angle), radius * np.sin(angle), color="#dddddd", lw=0.8, zorder=0)
            x, y = radius * math.cos(direction), radius * math.sin(direction)
            style = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            ax.text(x, y, f"{radius:g}", fontsize=7, color="#777777", ha="center", va="center", bbox=style)
    ax.plot([0], [0], "o", color="#222222", ms=6, zorder=3)
    ax.annotate("root", (0, 0), (6, -10), textcoords="offset points", fontsize=8, zorder=3)


def draw_item(ax: Any, item: Item, place: tuple[float, float], color: str) -> None:
    """Draw the thumbnail of an image, or the label of a text."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    frame = {"edgecolor": color, "boxstyle": "round,pad=0.25", "linewidth": 1.6}
    if item.image is None:
        text = textwrap.fill(shorten(item.label, LABEL_LENGTH), LINE_LENGTH)
        box = {**frame, "facecolor": "white", "alpha": 0.95}
        ax.text(*place, text, fontsize=8, ha="center", va="center", bbox=box, zorder=4)
        return
    thumbnail = OffsetImage(item.image, zoom=THUMBNAIL_PX / max(item.image.shape[:2]))
    ax.add_artist(AnnotationBbox(thumbnail, place, pad=0.15, bboxprops=frame, zorder=2))
