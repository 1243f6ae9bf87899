"""The samples of shards: the byte range of each.

`index_files` reads the ranges from the pipeline's `_index/`, `headers` finds those of other tars.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from hypergrit_common.image_header import type_of
from hypergrit_common.samples import MAX_SAMPLE_BYTES, MEMBER
from hypergrit_common.tar import BLOCK, TarError, iter_members, round_up_to_block
from trainer.data.listing import Stored
from trainer.data.shards import ByteRange, ShardFile

# The places of samples in their shards, in a temporary file of eight bytes per sample.
#
# Processes read the rows that they need from the file, so that the number of samples takes no memory. The file has no
# name, so that it disappears with the last process that uses it.

Rows = NDArray[np.uint32]  # [n 2]: first byte of each sample, divided by 512, and its size in bytes
ROW: Final = 8
CHUNK: Final = 1 << 23  # rows that are copied at once


class Places:
    """Rows of places, which are appended and read by their numbers. Pickling copies all of them."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        """Create a file in the folder for temporary files, or use an open one. Raises UserError if there is no room."""
        try:
            self.file = file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError as error:
            raise no_room(error) from error

    @classmethod
    def of_process(cls, path: str) -> "Places":
        """Open the file of another process of this machine by its `path`. Raises OSError."""
        return cls(Path(path).open("rb", buffering=0))

    @property
    def path(self) -> str:
        """A path by which other processes of this machine can open the file, as long as this one has it open."""
        return f"/proc/{os.getpid()}/fd/{self.file.fileno()}"

    def append(self, rows: Rows) -> None:
        """Append rows. Raises UserError if there is no room."""
        data = memoryview(rows.astype(np.uint32, copy=False).tobytes())
        try:
            while data:
                data = data[os.write(self.file.fileno(), data) :]
        except OSError as error:
            raise no_room(error) from error

    def read(self, first: int, n: int) -> Rows:
        """Return n rows from number `first` on."""
        return np.frombuffer(os.pread(self.file.fileno(), ROW * n, ROW * first), np.uint32).reshape(n, 2)

    def __getstate__(self) -> dict[str, Any]:
        size = os.fstat(self.file.fileno()).st_size
        return {"rows": [self.read(first, min(CHUNK, size // ROW - first)) for first in range(0, size // ROW, CHUNK)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        for rows in state["rows"]:
            self.append(rows)


def no_room(error: OSError) -> UserError:
    """The error for a folder for temporary files that is full or cannot be written."""
    return UserError(
        f"the index of the shards, 8 bytes per sample, cannot be written to {tempfile.gettempdir()}: {error}; free "
        "disk space there, or set TMPDIR to another folder"
    )


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
        # A larger sample is read as a truncated one, which is still too large.
        sizes = np.minimum(ends - starts, MAX_SAMPLE_BYTES + BLOCK).astype(np.uint32)
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


class SampleIndex:
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
    def from_parts(cls, facts: "IndexFacts", places: Places) -> "SampleIndex":
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

    def whole_range(self, sample: int) -> ByteRange:
        """Return the bytes up to the next sample: those of `byte_range` end with the last member that is needed."""
        shard, row = self.locate(sample)
        first = int(shard.starts[row])
        end = min((int(start) * BLOCK for start in shard.starts[shard.starts > first]), default=shard.n_bytes)
        return ByteRange(shard.url, first * BLOCK, min(end, first * BLOCK + MAX_SAMPLE_BYTES + BLOCK))

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


# Find the samples of a tar from its headers.
#
# The members of a sample are adjacent in its shard, as the webdataset format requires, so a sample is one byte range and
# takes one read. Its headers are parsed again after the read.


def index_shard(url: str) -> ShardIndex:
    """Index a shard from its headers. The incomplete last sample of a truncated shard is dropped.

    Raises UserError if the shard cannot be read or has more than 2 TiB.
    """
    with ShardFile(url) as file:
        starts: list[int] = []
        key, end, problem = "", 0, ""
        if file.size > MAX_SHARD_BYTES:
            raise UserError(f"{url} has {file.size} bytes, more than {MAX_SHARD_BYTES}; divide it into several tars")
        try:
            for member in iter_members(file.read_at, 0, file.size):
                match = MEMBER.fullmatch(member.name)
                if match is None:
                    continue
                if match[1] != key:
                    key = match[1]
                    starts.append(member.header_offset)
                end = member.data_offset + round_up_to_block(member.size)
            if file.size % BLOCK or end >= file.size:
                problem = "no end-of-archive mark, so it may be truncated" if starts else "it is empty"
        except TarError as error:
            head = b"" if starts else file.read_at(0, 1024)
            problem = f"it is {type_of(head) or 'no tar'}; it begins with {head[:20]!a}" if head else str(error)
            match = MEMBER.fullmatch(error.member)
            if match is not None and match[1] == key and starts:
                end = starts.pop()
        bounds = np.array([*starts, min(end, file.size)] if starts else [0], np.int64)
        return ShardIndex.of(url, file.size, bounds[:-1], bounds[1:], problem)


def member_names(url: str) -> Iterator[str]:
    """Yield the names of the members of a shard, up to the first damaged one. Raises UserError if it cannot be read."""
    with ShardFile(url) as file, suppress(TarError):
        for member in iter_members(file.read_at, 0, file.size):
            yield member.name
