"""Build the index of shards: read that of the pipeline, or find the samples from the headers once and cache them."""

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hypergrit_common.arrow_sizes import LARGE, batch_sizes, check_size, open_arrow_file
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.layouts import is_needed
from hypergrit_common.processes import n_cpus
from hypergrit_common.remote import map_concurrently, open_file, store_errors
from hypergrit_common.tar import BLOCK
from hypergrit_common.text import counted
from schemas.files import INDEX, INDEX_SUBREDDITS
from trainer.data.index import MAX_SHARD_BYTES, SampleIndex, ShardIndex, index_shard
from trainer.data.listing import ShardFacts, ShardVersion, list_facts, version_of

# Read the pipeline's `_index/`: the places of the samples of a shard, without its headers.

logger = logging.getLogger(__name__)

COLUMNS: Final = ("format", "offset", "size", "members")


def read_index(facts: ShardFacts, needs: frozenset[str] | None) -> ShardIndex | None:
    """Read the index of a shard if its manifest names one, else return None.

    A range ends with the last member that `needs` asks for (`hypergrit_common.layouts.is_needed`); None: the whole sample.
    Logs an index that differs from its manifest, and returns None. Raises UserError for a shard whose size differs
    from that in its manifest.
    """
    recorded, path = facts.recorded, facts.index_path
    if recorded is None:
        return None
    if recorded.get("bytes", facts.size) != facts.size:
        raise UserError(
            f"{facts.url} has {facts.size} bytes, but its manifest says {recorded['bytes']}; it is damaged: copy it "
            "again, or remove it and its manifest to train without it"
        )
    if path not in facts.files:
        return None
    url = f"{facts.place.root}/{path}"
    try:
        with open_file(url) as file:
            content = file.read(min(facts.files[path]["bytes"], max(facts.size, LARGE)) + 1)
        if hashlib.sha256(content).hexdigest() != facts.files[path]["sha256"]:
            raise ValueError("it differs from its hash in the manifest")
        starts, ends = sample_ranges(content, facts.place.folder, needs)
        if len(starts) and (ends.max() > facts.size or starts.min() < 0 or facts.size > MAX_SHARD_BYTES):
            raise ValueError("it names bytes that the shard does not have")
    except store_errors(ValueError, LookupError, TypeError, AttributeError, MemoryError, pa.ArrowException) as error:
        logger.warning("%s cannot be used (%s); the shard is indexed from its headers", url, error)
        return None
    return ShardIndex.of(facts.url, facts.size, starts, ends)


def sample_ranges(
    content: bytes, kind: str, needs: frozenset[str] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first bytes and ends [n] of the samples of one format in the bytes of an index."""
    reader = open_arrow_file(content, INDEX, use_threads=False)
    batch = reader.get_batch(0).select(COLUMNS)
    batch.validate(full=True)
    check_size(int(batch_sizes(batch).sum()), len(content))
    batch = batch.filter(pc.equal(batch["format"].cast(pa.string()), kind))
    starts = batch["offset"].to_numpy()
    ends = starts + batch["size"].to_numpy()
    if needs is None or not len(starts):
        return starts, ends
    members = batch["members"]
    first, values = members.offsets.to_numpy(), members.flatten()
    if (first[1:] == first[:-1]).any():
        raise ValueError("a sample has no members")
    names = values.field("name")
    if INDEX_SUBREDDITS.encode() in (reader.schema.metadata or {}):
        needs |= {"subreddit"}
    wanted = np.array([is_needed(kind, name, needs) for name in names.dictionary.to_pylist()])
    offsets, sizes = values.field("offset").to_numpy(), values.field("size").to_numpy()
    needed = np.where(wanted[names.indices.to_numpy()], offsets + -(-sizes // BLOCK) * BLOCK, 0)
    return starts, np.maximum.reduceat(needed, first[:-1] - first[0])


PART: Final = 4096
"""Shards whose indexes are read together."""
VERSION: Final = 4  # of the files in the index folder; rises with their format and with the checks of headers
MAX_WITHOUT_POOL: Final = 8  # shards; up to this number, a pool of processes takes longer to start than it saves
MAX_PROCESSES: Final = 64
MAX_LOGGED: Final = 5  # damaged shards that are logged by name


def build_index(
    urls: Sequence[str], folder: str = "", parallel: bool = False, needs: frozenset[str] | None = None
) -> SampleIndex:
    """Build the index of the shards `urls`. Raises UserError if no shard has a sample.

    Shards with an index of the pipeline are not opened, and their ranges end with the last member that `needs` asks for
    (None: all). Other shards are read once, with `parallel` by one process per CPU, and cached in `folder` unless that
    is empty.
    """
    return index_with_versions(urls, folder, parallel, needs)[0]


def index_with_versions(
    urls: Sequence[str], folder: str, parallel: bool, needs: frozenset[str] | None
) -> tuple[SampleIndex, list[ShardVersion]]:
    """Build the index like `build_index`, and return the versions of the shards too: manifests are read once for both.

    Raises UserError if no shard has a sample.
    """
    started = time.monotonic()
    versions: list[ShardVersion] = []

    def facts() -> Iterator[ShardFacts]:
        for shard in list_facts(urls):
            versions.append(version_of(shard))
            yield shard

    index = SampleIndex(index_shards(facts(), folder, parallel, needs))
    if not index.n_samples:
        first = list(enumerate(index.urls[:MAX_LOGGED]))
        reasons = "; ".join(f"{url}: {index.problems.get(number, 'no samples')}" for number, url in first)
        raise UserError(f"no sample in {counted(len(index.urls), 'shard')}: {reasons}; create or download them again")
    log_damaged_shards(index)
    seconds = time.monotonic() - started
    found = f"{counted(index.n_samples, 'sample')} in {counted(len(index.urls), 'shard')}"
    logger.info("%s, indexed in %.1f s", found, seconds)
    return index, versions


def log_damaged_shards(index: SampleIndex) -> None:
    """Log the damaged shards: the first few by name, then the number of the others."""
    for shard in index.damaged[:MAX_LOGGED]:
        logger.warning(
            "%s: %s; %s before the damage used; create or download the shard again",
            shard.url,
            shard.problem,
            counted(len(shard), "sample"),
        )
    if len(index.damaged) > MAX_LOGGED:
        logger.warning("%s damaged", counted(len(index.damaged) - MAX_LOGGED, "more shard"))


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
        try:
            with ProcessPoolExecutor(min(n_cpus(), MAX_PROCESSES)) as pool:
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
    except Exception:  # its type depends on the place of the damage
        shard = index_shard(facts.url)
        if facts.modified:
            save_shard_index(shard, path)
        return shard


def save_shard_index(shard: ShardIndex, path: Path) -> None:
    """Write the index of a shard atomically, since several runs may write the same file. A failure is only logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.savez(
                file,
                n_bytes=np.array(shard.n_bytes),
                starts=shard.starts,
                sizes=shard.sizes,
                problem=np.array(shard.problem),
            )
    except OSError as error:
        logger.warning("data.index_folder: %s cannot be written (%s); the index is kept in memory", path, error)
