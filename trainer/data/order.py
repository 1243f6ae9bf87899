"""Which sample comes when: a function of the shards, the seed and the buffer alone.

Epochs follow each other without a seam: what does not fill the last batch of one is in the first of the next, so every
sample comes once in each epoch whatever the batch. A place is a number in this endless row, a batch a run of places,
and ranks share out each batch: nothing depends on how many ranks, workers or shards there are, and any place can be
sought.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def epoch_order(counts: Sequence[int], seed: int, epoch: int, buffer: int) -> Ids:
    """The samples of one epoch. Shards in a new order, and no sample farther than `buffer` places from its shard's row.

    A sample's key is its place plus a random part of the buffer, and keys are sorted. That mixes as a shuffle buffer
    does, but needs no replay to get to a place in the middle.
    """
    generator = np.random.default_rng([seed, epoch])
    ends = np.cumsum(counts)
    shards = generator.permutation(len(counts))
    rows = [np.arange(ends[shard] - counts[shard], ends[shard]) for shard in shards]
    ids: Ids = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    keys = np.arange(len(ids)) + buffer * generator.random(len(ids))
    return ids[np.argsort(keys, kind="stable")]


@dataclass
class Order:
    """Samples by their place. `counts`: how many each shard has. Keeps the order of one epoch."""

    counts: Sequence[int]
    seed: int
    buffer: int
    _epoch: int = -1
    _ids: Ids | None = None

    def __post_init__(self) -> None:
        self.n_samples = int(sum(self.counts))

    def take(self, place: int, n: int) -> Ids:
        """The samples at places `place` to `place + n`."""
        parts = []
        while n > 0:
            epoch, offset = divmod(place, self.n_samples)
            part = self.of_epoch(epoch)[offset : offset + n]
            parts.append(part)
            place, n = place + len(part), n - len(part)
        return np.concatenate(parts)

    def of_epoch(self, epoch: int) -> Ids:
        if self._ids is None or self._epoch != epoch:
            self._ids, self._epoch = epoch_order(self.counts, self.seed, epoch, self.buffer), epoch
        return self._ids
