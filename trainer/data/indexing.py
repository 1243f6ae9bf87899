"""Build the index of shards: read that of the pipeline, or find the samples from the headers once and cache them."""

import hashlib
import logging
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from common.errors import UserError
from common.remote import map_concurrently
from trainer.data.headers import index_shard
from trainer.data.index import Index, ShardIndex
from trainer.data.index_files import read_index
from trainer.data.listing import ShardFacts, list_facts
from trainer.data.versions import ShardVersion, version_of

logger = logging.getLogger(__name__)

PART: Final = 4096
"""Shards whose indexes are read together."""
VERSION: Final = 3  # of the files in the index folder; rises with their format and with the checks of headers
MAX_WITHOUT_POOL: Final = 8  # shards; up to this number, a pool of processes takes longer to start than it saves
MAX_PROCESSES: Final = 64
MAX_LOGGED: Final = 5  # damaged shards that are logged by name


def build_index(
    urls: Sequence[str], folder: str = "", parallel: bool = False, needs: frozenset[str] | None = None
) -> Index:
    """Build the index of the shards `urls`. Raises UserError if no shard has a sample.

    Shards with an index of the pipeline are not opened, and their ranges end with the last member that `needs` asks for
    (None: all). Other shards are read once, with `parallel` by one process per CPU, and cached in `folder` unless that
    is empty.
    """
    return index_with_versions(urls, folder, parallel, needs)[0]


def index_with_versions(
    urls: Sequence[str], folder: str, parallel: bool, needs: frozenset[str] | None
) -> tuple[Index, list[ShardVersion]]:
    """Build the index like `build_index`, and return the versions of the shards too: manifests are read once for both.

    Raises UserError if no shard has a sample.
    """
    started = time.monotonic()
    versions: list[ShardVersion] = []

    def facts() -> Iterator[ShardFacts]:
        for shard in list_facts(urls):
            versions.append(version_of(shard))
            yield shard

    index = Index(index_shards(facts(), folder, parallel, needs))
    if not index.n_samples:
        first = list(enumerate(index.urls[:MAX_LOGGED]))
        reasons = "; ".join(f"{url}: {index.problems.get(number, 'no samples')}" for number, url in first)
        raise UserError(f"no sample in {len(index.urls)} shards: {reasons}; create or download them again")
    log_damaged_shards(index)
    seconds = time.monotonic() - started
    logger.info("%d samples in %d shards, indexed in %.1f s", index.n_samples, len(index.urls), seconds)
    return index, versions


def log_damaged_shards(index: Index) -> None:
    """Log the damaged shards: the first few by name, then the number of the others."""
    for shard in index.damaged[:MAX_LOGGED]:
        logger.warning(
            "%s: %s; the %d samples before the damage are used; create or download the shard again",
            shard.url,
            shard.problem,
            len(shard),
        )
    if len(index.damaged) > MAX_LOGGED:
        logger.warning("%d more shards are damaged", len(index.damaged) - MAX_LOGGED)


def index_shards(
    facts: Iterator[ShardFacts], folder: str, parallel: bool, needs: frozenset[str] | None
) -> Iterator[ShardIndex]:
    """Yield the index of each shard, in order; see `build_index`."""
    while part := list(islice(facts, PART)):  # a few at a time, so that few are in memory
        known = list(map_concurrently(partial(read_index, needs=needs), part))
        rest = [shard for shard, index in zip(part, known, strict=True) if index is None]
        scanned = scan_shards(rest, folder, parallel)
        for shard, index in zip(part, known, strict=True):
            yield replace(next(scanned) if index is None else index, modified=shard.modified)


def scan_shards(facts: Sequence[ShardFacts], folder: str, parallel: bool) -> Iterator[ShardIndex]:
    """Yield the index of each shard from its headers or the cache, computed by a pool of processes if that is faster.

    Raises UserError if a shard cannot be read, or if a process is killed.
    """
    scan = partial(load_or_scan, folder=folder)
    if parallel and len(facts) > MAX_WITHOUT_POOL:
        n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        try:
            with ProcessPoolExecutor(min(n_cpus, MAX_PROCESSES)) as pool:
                yield from pool.map(scan, facts)
        except BrokenProcessPool as error:
            raise UserError(
                "a process that indexes shards was killed, probably because memory ran out; free memory, then repeat "
                "the command"
            ) from error
    else:
        yield from map(scan, facts)


def default_folder() -> str:
    """Return the folder of cached indexes of this user: hypergrit/index in $XDG_CACHE_HOME, else in ~/.cache."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "hypergrit", "index")


def load_or_scan(facts: ShardFacts, folder: str) -> ShardIndex:
    """Load the index of the shard's present version from `folder`, or scan the shard and save the result there."""
    if not folder:
        return index_shard(facts.url)
    digest = hashlib.sha256(f"{VERSION}\n{facts.url}\n{facts.size}\n{facts.modified}".encode()).hexdigest()
    path = Path(folder, f"{digest[:32]}.npz")
    try:
        with np.load(path, allow_pickle=False) as file:
            return ShardIndex(facts.url, int(file["n_bytes"]), file["starts"], file["sizes"], str(file["problem"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        shard = index_shard(facts.url)
        if facts.modified:
            save_shard_index(shard, path)
        return shard


def save_shard_index(shard: ShardIndex, path: Path) -> None:
    """Write the index of a shard atomically, since several runs may write the same file. A failure is only logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            np.savez(
                file,
                n_bytes=np.array(shard.n_bytes),
                starts=shard.starts,
                sizes=shard.sizes,
                problem=np.array(shard.problem),
            )
        os.replace(file.name, path)
    except OSError as error:
        logger.warning("data.index_folder: %s cannot be written (%s); the index is kept in memory", path, error)
