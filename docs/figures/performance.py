"""The chart of docs/performance.md: the ratios of the table of other tools."""

import re
from pathlib import Path
from typing import Final

from docs.figures.paths import DOCS
from hypergrit_common.plots import COLORS, axes

ROW: Final = re.compile(r"^\| ([^|]+) \| [^|]+ \| ([^|]+?)(?:: [\d.,]+)? \| ([\d.]+) \|", re.MULTILINE)
"""A row of the table: task, baseline, ratio."""


def draw(target: Path) -> None:
    """Draw a bar for each row of the table, on a logarithmic scale that begins at 1."""
    rows = ROW.findall((DOCS / "performance.md").read_text("utf-8").partition("\n## Compared")[2].split("\n### ")[0])[
        ::-1
    ]
    names, ratios = [f"{task}  vs. {baseline}" for task, baseline, _ in rows], [float(row[2]) for row in rows]
    with axes(target, 9.0, 0.27 * len(rows) + 0.9) as found:
        found.barh(range(len(rows)), [ratio - 1 for ratio in ratios], left=1, height=0.7, color=COLORS[0])
        for place, ratio in enumerate(ratios):
            found.text(ratio * 1.03, place, f"{ratio:g}", va="center", fontsize=9)
        found.set_xscale("log")
        found.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        found.minorticks_off()
        found.set_xlim(0.8, 18)
        found.set_yticks(range(len(rows)), names, fontsize=9)
        found.set_xlabel("times as fast as the baseline (November 2026, two CPU cores)")
