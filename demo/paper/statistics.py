"""Means over seeds, and paired bootstrap intervals of differences over held-out units and seeds.

Units (images) and seeds are drawn with replacement, the same for both rows, because both rows have the same held-out
items, and the same initial weights and order of the data in each seed. With few seeds, their means spread too little
around the mean of a draw, and their deviation is itself uncertain: the deviation of the drawn seeds is widened by
sqrt(s / (s - 1)), and by the ratio of the quantiles of Student's t with s - 1 degrees of freedom and of the normal
distribution (2.2 with 3 seeds, 1.3 with 6). One seed cannot be drawn: its interval covers the held-out items alone.

Shapes: s seeds, n items, u units, r replicates.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.items import Items

Array = NDArray[np.float64]
COVERAGE: Final = 0.95
CHUNK: Final = 100
"""Replicates that are computed at once."""


class Estimate(NamedTuple):
    """The mean of a metric over seeds, and its deviation; None with one seed."""

    mean: float
    deviation: float | None
    n_seeds: int


class Interval(NamedTuple):
    """A value with the bounds of its interval."""

    value: float
    low: float
    high: float

    @property
    def side(self) -> int:
        """1 if the interval lies above 0, -1 if below, 0 if it contains 0."""
        return (self.low > 0) - (self.high < 0)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and sample deviation of the values of the seeds."""
    return Estimate(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def difference(first: Sequence[Items], second: Sequence[Items], n_replicates: int, seed: int = 0) -> Interval:
    """The interval of the metric of `first` minus that of `second`, each with one entry per seed.

    Raises UserError if the items of the two are not the same.
    """
    check_paired([*first, *second])
    values = [[items.metric() for items in row] for row in (first, second)]
    means = np.array(values[0]) - np.array(values[1])
    draws = [
        replicates(first, weights) - replicates(second, weights)
        for weights in unit_weights(first[0].units, n_replicates, seed)
    ]
    return interval(means, np.concatenate(draws), seed)


def above(row: Sequence[Items], level: float, n_replicates: int, seed: int = 0) -> Interval:
    """The interval of the metric of a row minus a constant, such as its chance level."""
    check_paired(row)
    means = np.array([items.metric() for items in row]) - level
    draws = [replicates(row, weights) - level for weights in unit_weights(row[0].units, n_replicates, seed)]
    return interval(means, np.concatenate(draws), seed)


def check_paired(rows: Sequence[Items]) -> None:
    """Raise UserError unless all items have the same units, kinds and reduction."""
    for items in rows[1:]:
        same = items.reduction == rows[0].reduction and np.array_equal(items.units, rows[0].units)
        if not same or not np.array_equal(items.is_true, rows[0].is_true):
            raise UserError("two results have different held-out items; delete the older one in results/ and run again")


def interval(means: Array, draws: Array, seed: int) -> Interval:
    """The interval of the mean of `means` [s], from draws [r s] over the units."""
    n_replicates, n_seeds = draws.shape
    counts = np.random.default_rng([seed, 1]).multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), n_replicates)
    center = draws.mean(1)
    tail = (1 - COVERAGE) / 2
    found = center + widening(n_seeds, tail) * ((draws * counts).sum(1) / n_seeds - center)
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(float(means.mean()), float(low), float(high))


def widening(n_seeds: int, tail: float) -> float:
    """The factor by which the deviation of drawn seeds is widened, for a quantile that leaves `tail`."""
    if n_seeds == 1:
        return 0.0
    return math.sqrt(n_seeds / (n_seeds - 1)) * float(t.isf(tail, n_seeds - 1) / norm.isf(tail))


def unit_weights(units: NDArray[np.int64], n_replicates: int, seed: int) -> Iterator[Array]:
    """Yield weights [r n] of the items: how often the unit of each was drawn."""
    rng = np.random.default_rng([seed, 0])
    _, place = np.unique(units, return_inverse=True)
    n_units = int(place.max()) + 1
    for start in range(0, n_replicates, CHUNK):
        counts = rng.multinomial(n_units, np.full(n_units, 1 / n_units), min(CHUNK, n_replicates - start))
        yield counts[:, place].astype(np.float64)


def replicates(row: Sequence[Items], weights: Array) -> Array:
    """The metrics [r s] of a row with weighted items, for weights [r n]."""
    return np.stack([replicate(items, weights) for items in row], 1)


def replicate(items: Items, weights: Array) -> Array:
    """The metric [r] of weighted items, for weights [r n]."""
    if items.reduction == "mean":
        return (weights @ items.values) / weights.sum(1)
    true, other = by_score(items, weights)
    if items.reduction == "auc":
        beaten = other.cumsum(1) - other / 2
        return (true * beaten).sum(1) / (true.sum(1) * other.sum(1))
    true, other = true[:, ::-1], other[:, ::-1]  # from the highest score
    balanced = other * (true.sum(1) / other.sum(1))[:, None]
    n_true, n_other = true.cumsum(1), balanced.cumsum(1)
    precision = np.divide(n_true, n_true + n_other, out=np.zeros_like(n_true), where=n_true > 0)
    found: Array = (true * precision).sum(1) / true.sum(1)
    return found


def by_score(items: Items, weights: Array) -> tuple[Array, Array]:
    """Weights [r g] of the true and of the mismatched pairs at each distinct score, from low to high."""
    order = np.argsort(items.values, kind="stable")
    values = items.values[order]
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    is_true = items.is_true[order]
    ordered = weights[:, order]
    kinds = (np.where(mask, ordered, 0.0) for mask in (is_true, ~is_true))
    true, other = (np.add.reduceat(kind, starts, axis=1) for kind in kinds)
    return true, other
