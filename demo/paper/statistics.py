"""Means over seeds and held-out items, and paired differences, with intervals that hold for other seeds and other items.

All seeds of a row see the same items, so a metric is the mean of a two-way layout with one value per cell (`crossed`). A
difference of two rows is taken cell by cell first: they share the items, and seeds are paired. Items of
one unit, such as the captions of one image, count as one, by the linear form of a mean of units of unequal size.

Shapes: s seeds, n items, u units.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from hypergrit_common.errors import UserError

Array = NDArray[np.float64]
COVERAGE: Final = 0.95


class Items(NamedTuple):
    """Values [n] whose mean is a metric, and the unit [n] that each belongs to."""

    values: Array
    units: NDArray[np.int64]


class MeanWithError(NamedTuple):
    """A mean or a difference with its standard error and degrees of freedom; infinite and 1 if one seed leaves them open."""

    value: float
    error: float
    freedom: float
    n_seeds: int
    has_items: bool
    """False if the interval holds for other seeds only, not for other items."""

    def half(self, coverage: float = COVERAGE) -> float:
        """Half of the width of the interval."""
        return self.error * float(stdtrit(self.freedom, (1 + coverage) / 2)) if self.error else 0.0

    @property
    def low(self) -> float:
        """The lower bound."""
        return self.value - self.half()

    @property
    def high(self) -> float:
        """The upper bound."""
        return self.value + self.half()

    @property
    def side(self) -> int:
        """1 if the interval lies above 0, -1 if below, 0 if it contains 0."""
        return (self.low > 0) - (self.high < 0)

    def is_below(self, margin: float) -> bool:
        """True if a one-sided test of level 5 % finds the value below a margin."""
        return self.value + self.half(2 * COVERAGE - 1) < margin

    def is_within(self, margin: float) -> bool:
        """True if two one-sided tests of level 5 % find the value between -margin and margin."""
        return self._replace(value=abs(self.value)).is_below(margin)


def seeds_only(values: ArrayLike) -> MeanWithError:
    """The mean of the values of seeds [s], with Student's t."""
    found = np.asarray(values, float)
    n = len(found)
    error = float(found.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return MeanWithError(float(found.mean()), error, max(1, n - 1), n, has_items=False)


def crossed(cells: Array) -> MeanWithError:
    """The mean of a layout [s u], of variance (MS_seed + MS_item - MS_rest) / (s u); of one seed, that of the items alone."""
    s, u = cells.shape
    mean, by_seed, by_item = float(cells.mean()), cells.mean(1), cells.mean(0)
    item = s * float(by_item.var(ddof=1))
    if s == 1:
        return MeanWithError(mean, math.sqrt(item / u), u - 1, s, has_items=True)
    seed = u * float(by_seed.var(ddof=1))
    residual = float(np.square(cells - by_seed[:, None] - by_item + mean).sum()) / ((s - 1) * (u - 1))
    variance = max(seed + item - residual, seed)  # below MS_seed only by chance: items have a variance
    parts = seed**2 / (s - 1) + item**2 / (u - 1) + residual**2 / ((s - 1) * (u - 1))
    freedom = variance**2 / parts if parts else 1.0  # Satterthwaite's, which are too many for few seeds
    shrunk = max(min(freedom, s - 1), freedom * (s - 1) / s, 1.0)
    return MeanWithError(mean, math.sqrt(variance / (s * u)), shrunk, s, has_items=True)


def layout(row: Sequence[Items]) -> Array:
    """The values [s u] of the units of results with one entry per seed, whose mean over units is the metric.

    Raises UserError if the results have different items.
    """
    units = row[0].units
    if any(not np.array_equal(items.units, units) for items in row[1:]):
        raise UserError("results have different held-out items; delete the older ones in results/ and run again")
    values = np.stack([items.values for items in row])
    means = values.mean(1, keepdims=True)
    _, place = np.unique(units, return_inverse=True)
    centered = np.stack([np.bincount(place, gaps) for gaps in values - means])
    return means + centered * (centered.shape[1] / len(units))
