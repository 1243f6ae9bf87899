"""The order of samples: a function of their numbers, the seed and the size of the global batch.

The epochs form one endless sequence of samples. A position is an index into this sequence, a batch is a range of
positions, and each rank takes an equal part of every batch. A batch may therefore span two epochs, each epoch contains
every sample once for any batch size, and the order does not depend on the number of ranks or loader processes. Training
can resume at any position without replaying those before it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.permutation import Permutation

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
        """The part of a loader's fingerprint from which `order_of` restores the order."""

    def take(self, position: int, n: int) -> Draw:
        """Return the samples at positions [position, position + n)."""
        parts = []
        while n > 0:
            epoch, first = divmod(position, self.n_samples)
            part = self.draw(epoch, first, min(first + n, self.n_samples))
            parts.append(part)
            position, n = position + len(part.samples), n - len(part.samples)
        return Draw(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def shares(self, counts: Sequence[int]) -> NDArray[np.float64]:
        """The expected share of each shard in a batch; `counts` are their numbers of samples."""
        return np.array(counts) / self.n_samples

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


@dataclass
class WindowOrder(Order):
    """The order of version 0.3: shards in random order, each sample moved by at most `buffer` positions.

    Caches the order of one epoch.
    """

    counts: Sequence[int]  # samples of each shard
    seed: int
    buffer: int
    _epoch: int = field(default=-1, compare=False)
    _ids: SampleIds = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)

    def __post_init__(self) -> None:
        self.n_samples = int(sum(self.counts))

    @property
    def name(self) -> str:
        return str(self.buffer)

    def draw(self, epoch: int, first: int, end: int) -> Draw:
        if self._epoch != epoch:
            self._ids, self._epoch = epoch_order(self.counts, self.seed, epoch, self.buffer), epoch
        return Draw(self._ids[first:end], np.zeros(end - first, np.int64))


def epoch_order(counts: Sequence[int], seed: int, epoch: int, buffer: int) -> SampleIds:
    """Return the samples of one epoch of `WindowOrder`.

    Samples are sorted by their position before shuffling plus a uniform random number below `buffer`. This mixes like a
    shuffle buffer, but the sample at any position is found without replaying those before it.
    """
    generator = np.random.default_rng([seed, epoch])
    ends = np.cumsum(counts)
    shards = generator.permutation(len(counts))
    by_shard = [np.arange(ends[shard] - counts[shard], ends[shard]) for shard in shards]
    ids: SampleIds = np.concatenate(by_shard) if by_shard else np.zeros(0, np.int64)
    keys = np.arange(len(ids)) + buffer * generator.random(len(ids))
    return ids[np.argsort(keys, kind="stable")]


def block_width(batch: int) -> int:
    """Return the number of open blocks for global batches of this size: a multiple of it, of at least `MIN_WIDTH`."""
    batches = BATCHES
    while batches * batch < MIN_WIDTH:
        batches *= 2
    return batches * batch


def order_of(name: str, counts: Sequence[int], seed: int) -> Order | None:
    """Return the order with this name, or None for an unknown name."""
    number = name.removeprefix(BLOCKS)
    if not number.isdecimal() or not (int(number) or name == number):
        return None
    if name == number:
        return WindowOrder(counts, seed, int(number))
    return BlockOrder(int(sum(counts)), seed, int(number))
