"""The samples of shards: the byte range of each, in eight bytes per sample.

`index_files` reads the ranges from the pipeline's `_index/`, `headers` finds those of other tars.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from common.tar import BLOCK
from trainer.data.shards import ByteRange

MAX_SAMPLE_BYTES: Final = 1 << 30
MAX_SHARD_BYTES: Final = BLOCK << 32


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard, in its order."""

    url: str
    n_bytes: int  # size of the shard
    starts: NDArray[np.uint32]  # [n] first byte of each sample, divided by 512: headers begin at multiples of it
    sizes: NDArray[np.uint32]  # [n] bytes of each sample, from its first header
    problem: str = ""  # damage that may hide further samples; empty: none

    @classmethod
    def of(
        cls, url: str, n_bytes: int, starts: NDArray[np.int64], ends: NDArray[np.int64], problem: str = ""
    ) -> "ShardIndex":
        """Return the index of samples with the byte ranges [start, end)."""
        # A larger sample is read as a truncated one, which is bad.
        sizes = np.minimum(ends - starts, MAX_SAMPLE_BYTES).astype(np.uint32)
        return cls(url, n_bytes, (starts // BLOCK).astype(np.uint32), sizes, problem)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def __len__(self) -> int:
        return len(self.starts)

    def byte_range(self, row: int, last: int | None = None) -> ByteRange:
        """Return the byte range of a sample, or that from sample `row` to the end of sample `last`."""
        last = row if last is None else last
        end = int(self.starts[last]) * BLOCK + int(self.sizes[last])
        return ByteRange(self.url, int(self.starts[row]) * BLOCK, end)


class Index:
    """The samples of all shards, numbered in the order of the shards."""

    def __init__(self, shards: Sequence[ShardIndex]) -> None:
        self.shards = tuple(shards)
        self.counts = tuple(map(len, self.shards))
        self.ends = np.cumsum(self.counts, dtype=np.int64)
        self.n_samples = int(self.ends[-1]) if self.shards else 0

    def locate(self, sample: int) -> tuple[ShardIndex, int]:
        """Return the shard of a sample and the number of the sample within it."""
        shard = int(np.searchsorted(self.ends, sample, side="right"))
        return self.shards[shard], sample - int(self.ends[shard]) + self.counts[shard]

    def byte_range(self, sample: int) -> ByteRange:
        """Return the byte range of a sample's members."""
        shard, row = self.locate(sample)
        return shard.byte_range(row)

    @property
    def mean_bytes(self) -> float:
        """The mean size of a sample in bytes."""
        return float(sum(int(shard.sizes.sum(dtype=np.int64)) for shard in self.shards)) / max(self.n_samples, 1)

    @property
    def damaged(self) -> list[ShardIndex]:
        """The shards that may hide further samples."""
        return [shard for shard in self.shards if shard.problem]

    @property
    def fingerprint(self) -> str:
        """A hash of the names of the shards and of their numbers of samples. Moving the shards does not change it."""
        text = "\n".join(f"{shard.name} {len(shard)}" for shard in self.shards)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
