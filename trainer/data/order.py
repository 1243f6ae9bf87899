"""The order of samples: a function of their numbers, the seed and the size of the global batch.

The epochs form one endless sequence of samples. A position is an index into this sequence, a batch is a range of
positions, and each rank takes an equal part of every batch. A batch may therefore span two epochs, each epoch contains
every sample once for any batch size, and the order does not depend on the number of ranks or loader processes. Training
can resume at any position without replaying those before it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations, split_locations
from hypergrit_common.shards import list_shards

# Random permutations of 0..n-1 that are computed, not stored.
#
# A Feistel network on pairs (a, b) of numbers below about sqrt(n), with modular sums in place of xor so that n need not
# be a power of two (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 5). The few pairs
# that do not stand for a number below n are mapped again until they do ("cycle walking", section 3).

ROUNDS: Final = 8
Integers = NDArray[np.int64]


class Permutation:
    """The permutation of 0..n-1 that `entropy`, a few integers of at least 0, selects. Takes 8 numbers of memory."""

    def __init__(self, n: int, entropy: Sequence[int]) -> None:
        self.n = n
        self.rows = max(math.isqrt(max(n - 1, 0)) + 1, 1)  # the pair (a, b) stands for the number a * columns + b
        self.columns = max(-(-n // self.rows), 1)
        self.keys = np.random.SeedSequence(list(entropy)).generate_state(ROUNDS, np.uint64)

    def __call__(self, numbers: Integers) -> Integers:
        """Return the images of numbers in [0, n)."""
        result = self._encrypt(numbers)
        outside = np.flatnonzero(result >= self.n)
        while len(outside):
            result[outside] = self._encrypt(result[outside])
            outside = outside[result[outside] >= self.n]
        return result

    def _encrypt(self, numbers: Integers) -> Integers:
        a, b = np.divmod(numbers.astype(np.uint64), np.uint64(self.columns))
        for number, key in enumerate(self.keys):
            if number % 2:
                b = (b + mix(a + key)) % np.uint64(self.columns)
            else:
                a = (a + mix(b + key)) % np.uint64(self.rows)
        return (a * np.uint64(self.columns) + b).astype(np.int64)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit numbers to numbers below 2^32, so that sums do not overflow (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values >> np.uint64(32)


SampleIds = NDArray[np.int64]

MAX_BLOCK: Final = 16
"""Largest number of samples in a block: a read of 0.5 to 2 MB."""
MIN_WIDTH: Final = 4096
BATCHES: Final = 8
"""Global batches after which a block gives its next sample, at least. Loader processes build batches in turn: if their
number divides this one, all samples of a block belong to one process."""
BLOCKS: Final = "blocks"


class Draw(NamedTuple):
    """Samples at consecutive positions."""

    samples: SampleIds
    ahead: NDArray[np.int64]  # number of samples after each one, in the order of the shards, that follow in this epoch


class Order(ABC):
    """Samples by position, over all epochs."""

    n_samples: int

    @property
    @abstractmethod
    def name(self) -> str:
        """The part of a loader's fingerprint from which `named` restores the order."""

    @abstractmethod
    def named(self, name: str) -> "Order | None":
        """The order of the same samples with another name, for another size of the batch; None for an unknown name."""

    def take(self, position: int, n: int) -> Draw:
        """Return the samples at positions [position, position + n)."""
        parts = []
        while n > 0:
            epoch, first = divmod(position, self.n_samples)
            part = self.draw(epoch, first, min(first + n, self.n_samples))
            parts.append(part)
            position, n = position + len(part.samples), n - len(part.samples)
        return Draw(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @abstractmethod
    def draw(self, epoch: int, first: int, end: int) -> Draw:
        """Return the samples at the positions [first, end) of an epoch."""


@dataclass
class BlockOrder(Order):
    """Blocks of consecutive samples in random order, `width` of them open at a time; each gives one sample in turn.

    The blocks of an epoch are opened one after the other, in the order of a random permutation. A block gives its first
    sample when it is opened, and the next ones at intervals of `width` positions (a convolutional interleaver, Forney
    1971, that is closed to a ring: the last blocks give the samples that the first positions lack). So the `width`
    samples at consecutive positions are of different blocks, drawn from the whole set. Nothing is stored: a position is
    computed in constant time. Small sets have smaller blocks, down to single samples.
    """

    n_samples: int
    seed: int
    width: int

    def __post_init__(self) -> None:
        self.block = 1  # samples of a block: a power of two that divides the width
        while (
            self.block < MAX_BLOCK
            and 2 * self.block * self.width <= self.n_samples
            and self.width % (2 * self.block) == 0
        ):
            self.block *= 2
        self.n_blocks = self.n_samples // self.block
        self.interval = self.width // self.block  # blocks that are opened between two samples of a block
        self._epoch, self._shift = -1, 0

    @property
    def name(self) -> str:
        return f"{BLOCKS}{self.width}"

    def named(self, name: str) -> "BlockOrder | None":
        width = name.removeprefix(BLOCKS)
        if width == name or not width.isdecimal() or not int(width):
            return None
        return BlockOrder(self.n_samples, self.seed, int(width))

    def draw(self, epoch: int, first: int, end: int) -> Draw:
        if epoch != self._epoch:
            # Another division into blocks in each epoch.
            self._shift = int(np.random.default_rng([self.seed, epoch]).integers(self.n_samples))
            self._permutation = Permutation(self.n_blocks, (self.seed, epoch))
            self._epoch = epoch
        positions = np.arange(first, end)
        opened, row = np.divmod(positions, self.block)  # blocks opened so far, and the samples given by the block
        blocks = self._permutation((opened - row * self.interval) % self.n_blocks)
        ahead = np.minimum(self.block - 1 - row, (self.n_blocks - 1 - opened) // self.interval)
        ids = blocks * self.block + row
        rest = positions >= self.n_blocks * self.block  # fewer samples than a block
        ids[rest], ahead[rest] = positions[rest], 0
        return Draw((ids + self._shift) % self.n_samples, ahead)


def block_width(batch: int) -> int:
    """Return the number of open blocks for global batches of this size: a multiple of it, of at least `MIN_WIDTH`."""
    batches = BATCHES
    while batches * batch < MIN_WIDTH:
        batches *= 2
    return batches * batch


# Weighted mixtures of several sets of shards: their list, and the order of their samples.

PERIOD: Final = 1 << 16
"""Positions after which each set has given exactly its share of samples, rounded to a multiple of 1 / PERIOD."""


def list_sets(shards: Locations) -> list[list[str]]:
    """List the shards of each set, in order. Raises UserError for a shard of two sets."""
    sets = [list_shards((item,)) for item in split_locations(shards)]
    urls = [url for part in sets for url in part]
    if twice := next((url for url in urls if urls.count(url) > 1), None) if len(set(urls)) < len(urls) else None:
        raise UserError(f"{twice} belongs to two of the sets that data.weights weighs; list it in one of them")
    return sets


class MixtureOrder(Order):
    """The samples of several sets in random order, each set in a `BlockOrder` with `width` open blocks.

    In each `PERIOD` of positions, a random permutation decides which set gives the sample at which position. The samples
    of a set follow each other over its own epochs, so a small set with a large weight is read more often. An epoch of
    the mixture has as many positions as all sets have samples.
    """

    def __init__(self, counts: Sequence[Sequence[int]], weights: Sequence[float], seed: int, width: int) -> None:
        """Create the order of sets with these weights; `counts` are the numbers of samples of the shards of each set."""
        self.counts, self.weights, self.seed = counts, weights, seed
        self.sizes = np.array([sum(part) for part in counts], np.int64)
        self.offsets = np.cumsum(self.sizes) - self.sizes
        self.n_samples = int(self.sizes.sum())
        self.quotas = quotas(weights)
        self.parts = [BlockOrder(size, seed, width) for size in self.sizes.tolist()]
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
        return f"{self.prefix}{self.parts[0].name}"

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
            rows = np.flatnonzero(chosen == number)
            drawn = self.parts[number].take(period * int(self.quotas[number]) + int(given[number]), len(rows))
            samples[rows], ahead[rows] = drawn.samples + self.offsets[number], drawn.ahead
        return Draw(samples, ahead)

    def named(self, name: str) -> "MixtureOrder | None":
        part = self.parts[0].named(name.removeprefix(self.prefix))
        if not name.startswith(self.prefix) or part is None:
            return None
        return MixtureOrder(self.counts, self.weights, self.seed, part.width)


def quotas(weights: Sequence[float]) -> NDArray[np.int64]:
    """The positions of each set in a `PERIOD`, by the method of the largest remainder, at least one each."""
    shares = np.array(weights) / sum(weights) * (PERIOD - len(weights))
    found = np.floor(shares).astype(np.int64) + 1
    found[np.argsort(found - shares, kind="stable")[: PERIOD - int(found.sum())]] += 1
    return found
