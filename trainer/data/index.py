"""The samples of shards: the byte range of each.

`index_files` reads the ranges from the pipeline's `_index/`, `headers` finds those of other tars.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from common.tar import BLOCK
from trainer.data.listing import Stored
from trainer.data.places import Places
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
    modified: str = ""  # ETag or modification time when it was indexed; empty: unknown

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
    """The samples of all shards, numbered in the order of the shards. Their places are in a file."""

    def __init__(self, shards: Iterable[ShardIndex]) -> None:
        """Copy the shards, one after the other."""
        places, facts, n_bytes = Places(), [], 0
        for shard in shards:
            places.append(np.stack([shard.starts, shard.sizes], axis=1))
            n_bytes += int(shard.sizes.sum(dtype=np.int64))
            facts.append((shard.url, shard.n_bytes, len(shard), shard.problem, shard.modified))
        self._set(IndexFacts.of(facts, n_bytes), places)

    @classmethod
    def from_parts(cls, facts: "IndexFacts", places: Places) -> "Index":
        """Create the index with these places."""
        index = cls.__new__(cls)
        index._set(facts, places)
        return index

    def _set(self, facts: "IndexFacts", places: Places) -> None:
        self.facts, self.places = facts, places
        self.urls, self.counts, self.problems = facts.urls, facts.counts, facts.problems
        self.ends = np.cumsum(self.counts, dtype=np.int64)
        self.n_samples = int(self.ends[-1]) if self.counts else 0

    def shard(self, number: int) -> ShardIndex:
        """Return a shard by its number."""
        n = self.counts[number]
        rows = self.places.read(int(self.ends[number]) - n, n)
        n_bytes, problem = int(self.facts.n_bytes[number]), self.problems.get(number, "")
        return ShardIndex(self.urls[number], n_bytes, rows[:, 0], rows[:, 1], problem)

    def url(self, sample: int) -> str:
        """Return the URL of the shard of a sample."""
        return self.urls[int(self.ends.searchsorted(sample, side="right"))]

    def locate(self, sample: int) -> tuple[ShardIndex, int]:
        """Return the shard of a sample and the number of the sample within it."""
        number = int(self.ends.searchsorted(sample, side="right"))
        return self.shard(number), sample - int(self.ends[number]) + self.counts[number]

    def byte_range(self, sample: int) -> ByteRange:
        """Return the byte range of a sample's members."""
        shard, row = self.locate(sample)
        return shard.byte_range(row)

    def n_bytes(self, sample: int) -> int:
        """Return the size of a sample in bytes."""
        return int(self.places.read(sample, 1)[0, 1])

    @property
    def stored(self) -> dict[str, Stored]:
        """The sizes and versions of the shards when they were indexed, by URL."""
        found = map(Stored, self.facts.n_bytes.tolist(), self.facts.modified)
        return dict(zip(self.urls, found, strict=True))

    @property
    def mean_bytes(self) -> float:
        """The mean size of a sample in bytes."""
        return self.facts.n_sample_bytes / max(self.n_samples, 1)

    @property
    def damaged(self) -> list[ShardIndex]:
        """The shards that may hide further samples."""
        return [self.shard(number) for number in self.problems]

    @property
    def fingerprint(self) -> str:
        """A hash of the names of the shards and of their numbers of samples. Moving the shards does not change it."""
        digest = hashlib.sha256()
        for number, (url, n) in enumerate(zip(self.urls, self.counts, strict=True)):
            digest.update(f"{chr(10) if number else ''}{url.rpartition('/')[2]} {n}".encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class IndexFacts:
    """The part of an index in memory: some 300 bytes per shard."""

    urls: tuple[str, ...]
    n_bytes: NDArray[np.int64]  # sizes of the shards
    counts: tuple[int, ...]  # samples of each shard
    problems: dict[int, str]  # number of a damaged shard -> damage
    n_sample_bytes: int  # of all samples
    modified: tuple[str, ...]  # ETag or modification time of each shard; empty: unknown

    @classmethod
    def of(cls, shards: Sequence[tuple[str, int, int, str, str]], n_sample_bytes: int) -> "IndexFacts":
        """Return the facts of shards with these URLs, sizes, numbers of samples, problems and versions."""
        return cls(
            tuple(url for url, *_ in shards),
            np.array([n_bytes for _, n_bytes, *_ in shards], np.int64),
            tuple(n for _, _, n, *_ in shards),
            {number: problem for number, (_, _, _, problem, _) in enumerate(shards) if problem},
            n_sample_bytes,
            tuple(modified for *_, modified in shards),
        )

    def on_another_machine(self) -> "IndexFacts":
        """These facts for another machine, whose copies of local shards may have other modification times."""
        kept = (modified if "://" in url else "" for url, modified in zip(self.urls, self.modified, strict=True))
        return replace(self, modified=tuple(kept))
