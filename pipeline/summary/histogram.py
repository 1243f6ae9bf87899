"""Counts of values in fixed bins, their mean, and percentiles.

Percentiles come from a second set of bins whose edges grow by a constant factor: Masson et al., "DDSketch" (2019).
All counts are integers and the sum is in fixed point, so that merging is exact and does not depend on the order.
"""

import base64
import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.scores import SCORES
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
    series = {True: ["images"], False: ["kept", "removed"]}
    sides = 2.0 ** np.arange(3, 14.25, 0.25)
    return {
        "box_area_ratio": Histogram(np.linspace(0, 1, 51), "kept", "removed"),
        "boxes_per_image": Histogram(np.arange(1, 33), "images", is_integer=True),
        "caption_length": Histogram(np.arange(0, 1005, 5), "captions", is_integer=True),
        **{s.histogram: Histogram(np.linspace(*s.edges), *series[s.of == "row"]) for s in SCORES if s.histogram},
        "image_side": Histogram(sides, "shorter", "longer", is_integer=True),
    }


# The number of distinct hashes, in bounded memory.
#
# Bar-Yossef et al., "Counting distinct elements in a data stream" (2002), in the unbiased form of Beyer et al., "On
# synopses for distinct-value estimation under multiset operations" (2007), section 4: of the k smallest distinct
# hashes, the largest tells how densely they lie.

SIZE: Final = 65_536
"""Hashes k that a sketch holds."""
HASHES: Final = 2.0**64

Hashes = NDArray[np.uint64]


class Distinct:
    """The `size` smallest distinct hashes of 64 bits, and the number of all hashes.

    Merging is exact: the result does not depend on the order. Fewer than `size` distinct hashes are counted exactly;
    above, the estimate has a relative standard error of 1 / sqrt(size - 2), 0.39 %.
    """

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.n = size, 0
        self._hashes: Hashes = np.zeros(0, np.uint64)
        self._new: list[Hashes] = []
        self._n_new = 0

    def add(self, hashes: Hashes) -> None:
        """Count hashes; repeated ones too."""
        self.n += len(hashes)
        self._keep(hashes)

    def merge(self, other: "Distinct") -> None:
        """Add the hashes of another sketch."""
        self.n += other.n
        self._keep(other.smallest())

    def _keep(self, hashes: Hashes) -> None:
        self._new.append(hashes)
        self._n_new += len(hashes)
        if self._n_new > 4 * self.size:
            self.smallest()

    def smallest(self) -> Hashes:
        """Return the smallest distinct hashes in their order."""
        if self._new:
            self._hashes = np.unique(np.concatenate([self._hashes, *self._new]))[: self.size]
            self._new, self._n_new = [], 0
        return self._hashes

    @property
    def is_exact(self) -> bool:
        """True if the number of distinct hashes is counted, not estimated."""
        return len(self.smallest()) < self.size

    def count(self) -> int:
        """Return the number of distinct hashes, or its estimate (k - 1) / U_k, where U_k is the largest in [0, 1]."""
        hashes = self.smallest()
        if self.is_exact:
            return len(hashes)
        return min(self.n, round((self.size - 1) / ((float(hashes[-1]) + 1) / HASHES)))

    def standard_error(self) -> float:
        """Return the relative standard error of `count`; 0 if it is exact."""
        return 0.0 if self.is_exact else 1 / math.sqrt(self.size - 2)

    def to_json(self) -> dict[str, Any]:
        """Return the sketch, with the hashes as base64 of little-endian integers."""
        return {"n": self.n, "hashes": base64.b64encode(self.smallest().astype("<u8").tobytes()).decode()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Distinct":
        """Return the sketch that `to_json` describes."""
        sketch = cls()
        sketch.n = int(value["n"])
        sketch._hashes = np.frombuffer(base64.b64decode(value["hashes"]), "<u8").astype(np.uint64)
        return sketch


# The most frequent texts of a stream, in bounded memory.
#
# Misra & Gries, "Finding repeated elements" (1982), merged as in Agarwal et al., "Mergeable summaries" (2012), section
# 3: add the counts of equal texts, then subtract the (m + 1)-th largest count from all and keep the positive ones.

CAPACITY: Final = 8192
"""Texts m that a stored sketch holds."""
SLACK: Final = 16
"""Texts that `merge` holds before it shrinks a sketch, in capacities."""


class Frequent:
    """Lower bounds of the counts of texts: the true count of each is in [count, count + error], 0 for a missing text.

    The error is at most (n - sum of the counts) / (m + 1), where n is the length of the stream, and 0 up to m distinct
    texts. `update` does not shrink the sketch.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.counts: Counter[str] = Counter()
        self.error = 0

    def update(self, texts: Iterable[str] | Mapping[str, int]) -> None:
        """Count texts."""
        self.counts.update(texts)

    def merge(self, other: "Frequent") -> None:
        """Add the counts of another sketch."""
        self.counts.update(other.counts)
        self.error += other.error
        if len(self.counts) > SLACK * self.capacity:
            self.shrink()

    def shrink(self) -> None:
        """Keep at most `capacity` texts."""
        if len(self.counts) <= self.capacity:
            return
        threshold = heapq.nlargest(self.capacity + 1, self.counts.values())[-1]
        self.error += threshold
        self.counts = Counter({text: n - threshold for text, n in self.counts.items() if n > threshold})

    def upper_bounds(self) -> Counter[str]:
        """Return the texts that occur more often than any missing text can, with the upper bounds of their counts.

        The bound of a text that was frequent in every part of the stream is its true count.
        """
        return Counter({text: n + self.error for text, n in self.counts.items() if n > self.error})

    def to_json(self) -> dict[str, Any]:
        """Return the sketch, the most frequent texts first."""
        items = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return {"texts": [text for text, _ in items], "counts": [n for _, n in items], "error": self.error}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Frequent":
        """Return the sketch that `to_json` describes."""
        sketch = cls()
        sketch.counts = Counter(dict(zip(value["texts"], value["counts"], strict=True)))
        sketch.error = int(value["error"])
        return sketch
