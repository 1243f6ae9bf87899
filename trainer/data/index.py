"""Where each sample of each shard begins: found once from the tars' headers, kept in a folder if one is given.

Eight bytes a sample. Members of a sample follow each other, as webdataset wants it; a sample is then one run of bytes,
read at once, and its headers are walked again when it is used.
"""

import hashlib
import logging
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from trainer.data.shards import ShardFile, Span, stamp
from trainer.data.tar import BLOCK, TarError, padded, walk

logger = logging.getLogger(__name__)

VERSION: Final = 1  # of the files in the index folder
FEW: Final = 8  # shards that are not worth a pool of processes
NAMED: Final = 5  # damaged shards that the log names
MEMBER: Final = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")
"""webdataset's: the key ends at the first dot after the last slash."""


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard: sample i is bytes bounds[i] to bounds[i + 1]."""

    url: str
    bounds: NDArray[np.int64]  # [n + 1]
    problem: str = ""  # why there may be more samples that cannot be read

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
        """The shard of a sample and its number there."""
        shard = int(np.searchsorted(self.ends, sample, side="right"))
        return self.shards[shard], sample - int(self.ends[shard]) + self.counts[shard]

    def span(self, sample: int) -> Span:
        shard, row = self.locate(sample)
        return shard.url, int(shard.bounds[row]), int(shard.bounds[row + 1])

    @property
    def fingerprint(self) -> str:
        """Of the shards' names and numbers of samples: a position holds for these alone, wherever they are."""
        text = "\n".join(f"{shard.name} {len(shard)}" for shard in self.shards)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_index(urls: Sequence[str], folder: str, workers: int, rank: int = 0, world_size: int = 1) -> Index:
    """The index of shards. Ranks begin in different places, so that with a folder in common they share the work.

    Raises UserError if no shard has a sample.
    """
    started = time.monotonic()
    first = rank * len(urls) // world_size
    found = {shard.url: shard for shard in index_all([*urls[first:], *urls[:first]], folder, workers)}
    index = Index([found[url] for url in urls])
    damaged = [shard for shard in index.shards if shard.problem]
    if not index.n_samples:
        reasons = "; ".join(f"{shard.url}: {shard.problem or 'no samples'}" for shard in index.shards[:NAMED])
        raise UserError(f"no sample in {len(urls)} shards: {reasons}. Make or download them again")
    for shard in damaged[:NAMED]:
        logger.warning(
            "%s: %s; the %d samples before that are used. Make or download it again",
            shard.url,
            shard.problem,
            len(shard),
        )
    if len(damaged) > NAMED:
        logger.warning("and %d more damaged shards", len(damaged) - NAMED)
    seconds = time.monotonic() - started
    logger.info("%d samples in %d shards, found in %.1f s", index.n_samples, len(urls), seconds)
    return index


def index_all(urls: Sequence[str], folder: str, workers: int) -> Iterator[ShardIndex]:
    find = partial(find_or_load, folder=folder)
    if workers > 0 and len(urls) > FEW:
        with ProcessPoolExecutor(workers) as pool:
            yield from pool.map(find, urls)
    else:
        yield from map(find, urls)


def find_or_load(url: str, folder: str) -> ShardIndex:
    """From the index folder if it has this shard as it is now, from the shard itself otherwise."""
    if not folder:
        return find_samples(url)
    digest = hashlib.sha256(f"{VERSION}\n{url}\n{stamp(url)}".encode()).hexdigest()
    path = Path(folder, f"{digest[:32]}.npz")
    try:
        with np.load(path, allow_pickle=False) as file:
            return ShardIndex(url, file["bounds"], str(file["problem"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        shard = find_samples(url)
        save(shard, path)
        return shard


def save(shard: ShardIndex, path: Path) -> None:
    """Atomically: ranks may write the same file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            np.savez(file, bounds=shard.bounds, problem=np.array(shard.problem))
        os.replace(file.name, path)
    except OSError as error:
        logger.warning("data.index_folder: %s cannot be written (%s); the index stays in memory", path, error)


def find_samples(url: str) -> ShardIndex:
    """Walk a shard's headers. A sample that a truncated shard has a part of a member of is left out."""
    with ShardFile(url) as file:
        starts: list[int] = []
        key, end, problem = "", 0, ""
        try:
            for member in walk(file.read_at, 0, file.size):
                match = MEMBER.fullmatch(member.name)
                if match is None:
                    continue
                if match[1] != key:
                    key = match[1]
                    starts.append(member.header)
                end = member.start + padded(member.size)
            if file.size % BLOCK or end >= file.size:
                problem = "no end mark, so it may be cut off" if starts else "it is empty"
        except TarError as error:
            problem = str(error)
            match = MEMBER.fullmatch(error.member)
            if match is not None and match[1] == key and starts:
                end = starts.pop()
    return ShardIndex(url, np.array([*starts, min(end, file.size)] if starts else [0], np.int64), problem)


def members(span: bytes) -> Iterable[tuple[str, str, int, int]]:
    """Key, extension, first byte and size of each member in the bytes of a sample. Raises TarError if they are cut."""
    for member in walk(lambda offset, length: span[offset : offset + length], 0, len(span), check=False):
        match = MEMBER.fullmatch(member.name)
        if match is not None:
            yield match[1], match[2], member.start, member.size
