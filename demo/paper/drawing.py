"""Plots of the study as PNG files, with matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from common.plots import COLORS, axes
from demo.paper.results import Judgement, Row
from demo.paper.statistics import estimate
from trainer.evaluation.plots import draw_bars
from trainer.evaluation.tables import is_share

COLOR_OF: Final = {"shown": COLORS[2], "not shown": COLORS[5], "contradicted": COLORS[1]}


def draw_accuracy(rows: Mapping[str, Row], name: str, path: Path) -> None:
    """Draw the accuracy of each row, with a mark at chance level."""
    bars = {}
    for row in rows.values():
        if values := row.metric(name):
            bars[row.variant.title] = (estimate(values).mean, row.chance(name) or 0.0)
    draw_bars(bars, path)


def draw_differences(judgements: Sequence[Judgement], path: Path) -> None:
    """Draw the difference of each measured claim in percentage points with its interval, in the claim's direction."""
    shown = [entry for entry in judgements if entry.interval and is_share(entry.claim.metric)][::-1]
    with axes(path, 9, 1 + 0.26 * len(shown)) as ax:
        for place, entry in enumerate(shown):
            assert entry.interval is not None
            sign = 1 if entry.claim.direction == "above" else -1
            low, high = sorted((100 * sign * entry.interval.low, 100 * sign * entry.interval.high))
            color = COLOR_OF[entry.verdict]
            ax.plot([low, high], [place, place], color=color, lw=2)
            ax.plot([100 * sign * entry.interval.value], [place], "o", color=color, ms=5)
        names = [f"{entry.claim.paper}: {entry.claim.text}".replace("$", r"\$") for entry in shown]
        ax.set_yticks(range(len(shown)), names, fontsize=7)
        ax.axvline(0, color="#888888", lw=1)
        ax.set(xlabel="difference in percentage points; right of 0: as claimed")
