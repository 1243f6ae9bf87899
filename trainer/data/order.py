"""The order of samples: a function of the sample counts of the shards, the seed and the shuffle buffer.

The epochs form one endless sequence of samples. A position is an index into this sequence, a batch is a range of
positions, and each rank takes an equal part of every batch. A batch may therefore span two epochs, each epoch contains
every sample once for any batch size, and the order does not depend on the number of ranks or loader processes. Training
can resume at any position without replaying those before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SampleIds = NDArray[np.int64]


def epoch_order(counts: Sequence[int], seed: int, epoch: int, buffer: int) -> SampleIds:
    """Return the samples of one epoch: shards in random order, each sample moved by at most `buffer` positions.

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


@dataclass
class Order:
    """Samples by position, over all epochs. Caches the order of one epoch."""

    counts: Sequence[int]  # samples of each shard
    seed: int
    buffer: int  # largest distance by which shuffling moves a sample
    _epoch: int = -1
    _ids: SampleIds | None = None

    def __post_init__(self) -> None:
        self.n_samples = int(sum(self.counts))

    def take(self, position: int, n: int) -> SampleIds:
        """Return the samples at positions [position, position + n)."""
        parts = []
        while n > 0:
            epoch, offset = divmod(position, self.n_samples)
            part = self._order_of(epoch)[offset : offset + n]
            parts.append(part)
            position, n = position + len(part), n - len(part)
        return np.concatenate(parts)

    def _order_of(self, epoch: int) -> SampleIds:
        if self._ids is None or self._epoch != epoch:
            self._ids, self._epoch = epoch_order(self.counts, self.seed, epoch, self.buffer), epoch
        return self._ids
