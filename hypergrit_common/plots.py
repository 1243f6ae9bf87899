"""Plots as PNG files, with matplotlib. Colors suit light and dark pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError

COLORS: Final = ("#1f6fb8", "#c2410c", "#2a9d8f", "#8f5a00", "#6741d9", "#495057", "#c2255c", "#237032")


@contextmanager
def axes(path: Path, width: float, height: float) -> Iterator[Any]:
    """Yield matplotlib axes, and save them to `path` at the end. Raises UserError without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("plots need matplotlib; pip install matplotlib, or leave out the plot") from error
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white", layout="constrained")
    found = figure.add_subplot()
    found.spines[["top", "right"]].set_visible(False)
    yield found
    with atomic_write(path) as draft:
        figure.savefig(draft, format=path.suffix[1:] or "png", metadata={"Software": None})
