"""Index the samples of shards: the byte range of each, found from the tar headers and optionally cached in a folder.

The index takes eight bytes per sample. The members of a sample are adjacent in its shard, as the webdataset format
requires, so a sample is one byte range and takes one read. Its headers are parsed again after the read.
"""

import hashlib
import logging
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.tar import BLOCK, TarError, iter_members, round_up_to_block
from trainer.data.shards import ByteRange, ShardFile, shard_version

logger = logging.getLogger(__name__)

VERSION: Final = 1  # format version of the files in the index folder
MAX_WITHOUT_POOL: Final = 8  # shards; up to this number, a pool of processes takes longer to start than it saves
MAX_SAMPLE_BYTES: Final = 1 << 30
MAX_LOGGED: Final = 5  # damaged shards that are logged by name
MEMBER: Final = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")
"""Key and extension of a member, as in webdataset: the key ends at the first dot after the last slash."""


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard: sample i is bytes bounds[i] to bounds[i + 1]."""

    url: str
    bounds: NDArray[np.int64]  # [n + 1]
    problem: str = ""  # damage that may hide further samples; empty: none

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def __len__(self) -> int:
        return len(self.bounds) - 1


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
        start, end = int(shard.bounds[row]), int(shard.bounds[row + 1])
        # A larger sample is read as a truncated one, which is bad.
        return ByteRange(shard.url, start, min(end, start + MAX_SAMPLE_BYTES))

    @property
    def fingerprint(self) -> str:
        """A hash of the names of the shards and of their numbers of samples. Moving the shards does not change it."""
        text = "\n".join(f"{shard.name} {len(shard)}" for shard in self.shards)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_index(urls: Sequence[str], folder: str, workers: int, rank: int = 0, world_size: int = 1) -> Index:
    """Build the index of the shards `urls` with `workers` processes.

    The index of each shard is cached in `folder`, unless that is empty. Ranks begin with different shards, so that
    ranks with the same folder share the work. Raises UserError if no shard has a sample.
    """
    started = time.monotonic()
    first = rank * len(urls) // world_size
    by_url = {shard.url: shard for shard in index_shards([*urls[first:], *urls[:first]], folder, workers)}
    index = Index([by_url[url] for url in urls])
    if not index.n_samples:
        reasons = "; ".join(f"{shard.url}: {shard.problem or 'no samples'}" for shard in index.shards[:MAX_LOGGED])
        raise UserError(f"no sample in {len(urls)} shards: {reasons}; create or download them again")
    log_damaged_shards(index)
    seconds = time.monotonic() - started
    logger.info("%d samples in %d shards, indexed in %.1f s", index.n_samples, len(urls), seconds)
    return index


def log_damaged_shards(index: Index) -> None:
    """Log the damaged shards: the first few by name, then the number of the others."""
    damaged = [shard for shard in index.shards if shard.problem]
    for shard in damaged[:MAX_LOGGED]:
        logger.warning(
            "%s: %s; the %d samples before the damage are used; create or download the shard again",
            shard.url,
            shard.problem,
            len(shard),
        )
    if len(damaged) > MAX_LOGGED:
        logger.warning("%d more shards are damaged", len(damaged) - MAX_LOGGED)


def index_shards(urls: Sequence[str], folder: str, workers: int) -> Iterator[ShardIndex]:
    """Yield the index of each shard, in order, computed by a pool of processes if that is faster."""
    index_one = partial(load_or_index, folder=folder)
    if workers > 0 and len(urls) > MAX_WITHOUT_POOL:
        with ProcessPoolExecutor(workers) as pool:
            yield from pool.map(index_one, urls)
    else:
        yield from map(index_one, urls)


def load_or_index(url: str, folder: str) -> ShardIndex:
    """Load the index of the shard's current version from `folder`, or index the shard and save the result there."""
    if not folder:
        return index_shard(url)
    digest = hashlib.sha256(f"{VERSION}\n{url}\n{shard_version(url)}".encode()).hexdigest()
    path = Path(folder, f"{digest[:32]}.npz")
    try:
        with np.load(path, allow_pickle=False) as file:
            return ShardIndex(url, file["bounds"], str(file["problem"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        shard = index_shard(url)
        save_shard_index(shard, path)
        return shard


def save_shard_index(shard: ShardIndex, path: Path) -> None:
    """Write the index of a shard atomically, since several ranks may write the same file. A failure is only logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            np.savez(file, bounds=shard.bounds, problem=np.array(shard.problem))
        os.replace(file.name, path)
    except OSError as error:
        logger.warning("data.index_folder: %s cannot be written (%s); the index is kept in memory", path, error)


def index_shard(url: str) -> ShardIndex:
    """Index a shard from its headers. The incomplete last sample of a truncated shard is dropped."""
    with ShardFile(url) as file:
        starts: list[int] = []
        key, end, problem = "", 0, ""
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
            problem = str(error)
            match = MEMBER.fullmatch(error.member)
            if match is not None and match[1] == key and starts:
                end = starts.pop()
    return ShardIndex(url, np.array([*starts, min(end, file.size)] if starts else [0], np.int64), problem)


class SampleMember(NamedTuple):
    """A file of a sample; `offset` is that of its content, in the bytes of the sample."""

    key: str
    extension: str
    offset: int
    size: int


def sample_members(data: bytes) -> Iterator[SampleMember]:
    """Yield the files in the bytes of a sample. Raises TarError if they are truncated or not part of a tar."""
    for member in iter_members(lambda offset, length: data[offset : offset + length], 0, len(data), verify=False):
        match = MEMBER.fullmatch(member.name)
        if match is not None:
            yield SampleMember(match[1], match[2], member.data_offset, member.size)
