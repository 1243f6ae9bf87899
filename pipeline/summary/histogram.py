"""Counts of values in fixed bins, their mean, and percentiles.

Percentiles come from a second set of bins whose edges grow by a constant factor: Masson et al., "DDSketch" (2019).
All counts are integers and the sum is in fixed point, so that merging is exact and does not depend on the order.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.stats import HistogramJson

Array = NDArray[Any]

ACCURACY: Final = 0.01
"""Relative error of a percentile, for values between 1e-6 and 1e6; smaller ones count as 0, larger ones as 1e6."""
GROWTH: Final = (1 + ACCURACY) / (1 - ACCURACY)
LOWEST, HIGHEST = 1e-6, 1e6
PERCENTILES: Final = (5, 25, 50, 75, 95)
SCALE: Final = 1 << 24
"""Units of the sums for 1: the mean has an absolute error of at most half a unit, 3e-8."""


def growing_edges() -> Array:
    """Return the upper edges of the bins for percentiles, by multiplication, which is the same on all machines."""
    edges = [LOWEST]
    while edges[-1] < HIGHEST:
        edges.append(edges[-1] * GROWTH)
    return np.array(edges)


EDGES: Final = growing_edges()


class Series:
    """The counts of one series of values."""

    def __init__(self, n_bins: int) -> None:
        self.counts = np.zeros(n_bins, np.int64)
        self.fine: Counter[int] = Counter()  # bin of EDGES from 1 on -> count; negative for negative values, 0 for 0
        self.sum = 0

    def merge(self, other: "Series") -> None:
        """Add the counts of another series."""
        self.counts = self.counts + other.counts
        self.fine.update(other.fine)
        self.sum += other.sum

    @property
    def n(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def percentile(self, percent: int) -> float:
        """Return the value at rank ceil(percent / 100 * n), within ACCURACY."""
        rank, seen = math.ceil(percent * self.n / 100), 0
        for index in sorted(self.fine):
            seen += self.fine[index]
            if seen >= rank:
                return math.copysign(middle(abs(index)), index) if index else 0.0
        raise ValueError("no values")


class Histogram:
    """Counts in bins, for one or several series. Values outside are counted in the outermost bins."""

    def __init__(self, edges: Array, *series: str, is_integer: bool = False) -> None:
        self.edges, self.is_integer = edges, is_integer
        self.series = {name: Series(len(edges) - 1) for name in series}

    def add(self, series: str, values: Array) -> None:
        """Count `values`; non-finite ones are skipped."""
        values = values[np.isfinite(values)]
        bins = np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(self.edges) - 2)
        found = self.series[series]
        found.counts += np.bincount(bins, minlength=len(self.edges) - 1)
        found.sum += int(np.rint(np.clip(values, -HIGHEST, HIGHEST) * SCALE).astype(np.int64).sum())
        fine = np.minimum(np.searchsorted(EDGES, np.abs(values)), len(EDGES) - 1) * np.sign(values).astype(np.int64)
        indices, counts = np.unique(fine, return_counts=True)
        found.fine.update(dict(zip(indices.tolist(), counts.tolist(), strict=True)))

    def merge(self, other: "Histogram") -> None:
        """Add the counts of a histogram with the same bins and series."""
        for name, series in self.series.items():
            series.merge(other.series[name])

    def to_statistics(self) -> HistogramJson:
        """Return the histogram in the form of stats.json."""
        n = {name: series.n for name, series in self.series.items()}
        return {
            "edges": [round(float(edge), 4) for edge in self.edges],
            "counts": {name: series.counts.tolist() for name, series in self.series.items()},
            "n": n,
            "mean": {
                name: round(series.sum / SCALE / n[name], 4) if n[name] else None
                for name, series in self.series.items()
            },
            "percentiles": {name: self._percentiles(series) for name, series in self.series.items() if n[name]},
        }

    def _percentiles(self, series: Series) -> dict[str, float]:
        """Return the percentiles by their percentage; those of whole numbers are rounded, which is exact up to 49."""
        digits = 0 if self.is_integer else 4
        return {str(percent): round(series.percentile(percent), digits) for percent in PERCENTILES}

    def to_json(self) -> dict[str, Any]:
        """Return the counts, without the edges."""
        return {
            name: {
                "counts": series.counts.tolist(),
                "fine": [sorted(series.fine), [series.fine[index] for index in sorted(series.fine)]],
                "sum": series.sum,
            }
            for name, series in self.series.items()
        }

    def load(self, value: Mapping[str, Any]) -> None:
        """Take the counts that `to_json` describes. Raises ValueError if they have other series or bins."""
        if value.keys() != self.series.keys():
            raise ValueError(f"a histogram has the series {', '.join(value)}")
        for name, series in self.series.items():
            counts = np.array(value[name]["counts"], np.int64)
            if counts.shape != series.counts.shape:
                raise ValueError(f"a histogram has {len(counts)} bins")
            indices, numbers = value[name]["fine"]
            series.counts, series.sum = counts, int(value[name]["sum"])
            series.fine = Counter(dict(zip(indices, numbers, strict=True)))


def middle(index: int) -> float:
    """Return the value of a bin of EDGES that is within ACCURACY of all others in it."""
    return float(EDGES[index] * 2 / (1 + GROWTH))


def make_histograms() -> dict[str, Histogram]:
    """Return the empty histograms of stats.json by name."""
    sides = 2.0 ** np.arange(3, 14.25, 0.25)
    return {
        "box_area_ratio": Histogram(np.linspace(0, 1, 51), "kept", "removed"),
        "boxes_per_image": Histogram(np.arange(1, 33), "images", is_integer=True),
        "caption_length": Histogram(np.arange(0, 1005, 5), "captions", is_integer=True),
        "grounding_score": Histogram(np.linspace(0, 1, 51), "kept", "removed"),
        "clip_cosine": Histogram(np.linspace(-1, 1, 101), "kept", "removed"),
        "clip_similarity": Histogram(np.linspace(-1, 1, 101), "images"),
        "image_side": Histogram(sides, "shorter", "longer", is_integer=True),
    }
