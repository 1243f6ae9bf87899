"""Weighted mixtures of several sets of shards: their list, and the order of their samples."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.shards import list_shards
from trainer.data.order import Draw, Order, order_of

PERIOD: Final = 1 << 16
"""Positions after which each set has given exactly its share of samples, rounded to a multiple of 1 / PERIOD."""


def list_sets(shards: str) -> list[list[str]]:
    """List the shards of each set, in order; sets are separated by commas. Raises UserError for a shard of two sets."""
    sets = [list_shards(item) for item in shards.split(",")]
    urls = [url for part in sets for url in part]
    if twice := next((url for url in urls if urls.count(url) > 1), None) if len(set(urls)) < len(urls) else None:
        raise UserError(f"{twice} belongs to two of the sets that data.weights weighs; list it in one of them")
    return sets


class MixtureOrder(Order):
    """The samples of several sets in random order, each set in the order that `name_of_parts` names.

    In each `PERIOD` of positions, a random permutation decides which set gives the sample at which position. The samples
    of a set follow each other over its own epochs, so a small set with a large weight is read more often. An epoch of
    the mixture has as many positions as all sets have samples.
    """

    def __init__(
        self, counts: Sequence[Sequence[int]], weights: Sequence[float], seed: int, name_of_parts: str
    ) -> None:
        """Create the order of sets with these weights; `counts` are the numbers of samples of the shards of each set."""
        self.counts, self.weights, self.seed = counts, weights, seed
        self.sizes = np.array([sum(part) for part in counts], np.int64)
        self.offsets = np.cumsum(self.sizes) - self.sizes
        self.n_samples = int(self.sizes.sum())
        self.quotas = quotas(weights)
        self.parts = [order_of(name_of_parts, part, seed) for part in counts]
        self.name_of_parts = name_of_parts
        self._period, self._sets = -1, np.zeros(0, np.int64)

    @property
    def prefix(self) -> str:
        """The beginning of the name: the shares and the sizes of the sets."""
        sets = ".".join(
            f"{quota}x{size}" for quota, size in zip(self.quotas.tolist(), self.sizes.tolist(), strict=True)
        )
        return f"mixture{sets}:"

    @property
    def name(self) -> str:
        return f"{self.prefix}{self.name_of_parts}"

    def draw(self, epoch: int, first: int, end: int) -> Draw:
        start, stop = epoch * self.n_samples + first, epoch * self.n_samples + end
        found = [
            self._draw(period, max(start - period * PERIOD, 0), min(stop - period * PERIOD, PERIOD))
            for period in range(start // PERIOD, (stop - 1) // PERIOD + 1)
        ]
        return Draw(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def _draw(self, period: int, first: int, end: int) -> Draw:
        """The samples at the positions [first, end) of a period."""
        if period != self._period:
            sets = np.repeat(np.arange(len(self.quotas)), self.quotas)
            self._sets, self._period = np.random.default_rng([self.seed, period]).permutation(sets), period
        chosen, given = self._sets[first:end], np.bincount(self._sets[:first], minlength=len(self.quotas))
        samples, ahead = np.empty(end - first, np.int64), np.empty(end - first, np.int64)
        for number in np.unique(chosen).tolist():
            rows, part = np.flatnonzero(chosen == number), self.parts[number]
            assert part is not None
            drawn = part.take(period * int(self.quotas[number]) + int(given[number]), len(rows))
            samples[rows], ahead[rows] = drawn.samples + self.offsets[number], drawn.ahead
        return Draw(samples, ahead)

    def shares(self, counts: Sequence[int]) -> NDArray[np.float64]:
        ratios = self.quotas / PERIOD / self.sizes
        return np.concatenate([np.array(part) * ratio for part, ratio in zip(self.counts, ratios, strict=True)])

    def named(self, name: str) -> "Order | None":
        parts = name.removeprefix(self.prefix)
        if parts == name or order_of(parts, self.counts[0], self.seed) is None:
            return None
        return MixtureOrder(self.counts, self.weights, self.seed, parts)


def quotas(weights: Sequence[float]) -> NDArray[np.int64]:
    """The positions of each set in a `PERIOD`, by the method of the largest remainder, at least one each."""
    shares = np.array(weights) / sum(weights) * (PERIOD - len(weights))
    found = np.floor(shares).astype(np.int64) + 1
    found[np.argsort(found - shares, kind="stable")[: PERIOD - int(found.sum())]] += 1
    return found
