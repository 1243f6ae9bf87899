"""Requests of a job to the object stores of its input and output."""

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from common.remote import open_store
from pipeline.config import PipelineConfig
from pipeline.read.types import ShardPlan
from pipeline.report.stats import build_stats
from pipeline.resume.finished import find_damaged
from pipeline.resume.listing import list_output
from pipeline.write.stage import write_shard
from pipeline.write.store import Store
from schemas.files import LEASE_FILE, TIMINGS_FILE
from schemas.manifest import Provenance
from schemas.rows import SCORED

PROTOCOL: Final = "hypergrit-counted"
REQUESTS: Final = ("cat_file", "info", "ls", "pipe_file", "put_file", "rm_file", "_open")
"""Methods that send a request to an object store."""
BLOCK: Final = 50 << 20
"""Bytes of one read, or of a part of a large upload, in s3fs."""


class Cost(NamedTuple):
    """Requests for each shard, and those of a job besides."""

    per_shard: float
    fixed: float

    def total(self, n_shards: int) -> float:
        """Return the requests for this number of shards."""
        return self.per_shard * n_shards + self.fixed


class CountedStore(MemoryFileSystem):
    """A store in memory that counts requests; the files of several instances are the same."""

    protocol = PROTOCOL
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    calls: ClassVar[list[str]] = []
    thread: ClassVar[threading.local] = threading.local()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return partial(self._count, value, name) if name in REQUESTS else value

    def _count(self, method: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
        is_within = getattr(self.thread, "is_within", False)
        if not is_within:  # not for a call within another one
            self.calls.append(name)
        self.thread.is_within = True
        try:
            return method(*arguments, **options)
        finally:
            self.thread.is_within = is_within


def output_cost(config: PipelineConfig, provenance: Provenance) -> Cost:
    """Count the requests to the output: the commit of shards without rows, and the report, with a store in memory.

    A local output needs none.
    """
    if isinstance(open_store(config.output)[0], LocalFileSystem):
        return Cost(0, 0)
    fsspec.register_implementation(PROTOCOL, CountedStore, clobber=True)
    one, three = (count_requests(n, config, provenance) for n in (1, 3))
    return Cost((three - one) / 2, one - (three - one) / 2)


def count_requests(n_shards: int, config: PipelineConfig, provenance: Provenance) -> int:
    """Commit empty shards, look for damaged ones and count the rows; return the number of requests."""
    url = f"{PROTOCOL}://dry-run-{n_shards}"
    CountedStore.calls.clear()
    plans = [ShardPlan(index, 0, 0, ()) for index in range(n_shards)]
    store = Store(url)
    try:
        list_output(store)
        store.write(LEASE_FILE, json.dumps({"token": ""}))  # every commit reads the lease
        for plan in plans:
            write_shard(SCORED.empty_table(), plan, config.write, store, provenance, lease="")
            store.write(store.file(TIMINGS_FILE, plan.index), "{}")
        find_damaged(store, plans, config, provenance)
        build_stats(url)
        return len(CountedStore.calls)
    finally:
        with suppress(FileNotFoundError):
            store.fs.rm(store.root, recursive=True)


def upload_parts(bytes_per_shard: Mapping[str, float]) -> float:
    """Return the further requests for the files of a shard that are uploaded in parts."""
    return float(sum(math.ceil(n / BLOCK) + 1 for n in bytes_per_shard.values() if n >= 2 * BLOCK))


def input_requests(plans: Sequence[ShardPlan]) -> float:
    """Estimate the requests to read these shards from an object store, from the sizes of the files.

    A piece of a file takes one request for the attributes before and after it, and one for each block. Local files take
    none.
    """
    rows: Counter[str] = Counter()
    for plan in plans:
        for piece in plan.pieces:
            rows[piece.path] += piece.n_rows
    remote = {path for path in rows if not isinstance(open_store(path)[0], LocalFileSystem)}
    pieces = [piece for plan in plans for piece in plan.pieces if piece.path in remote]
    return float(sum(2 + math.ceil(piece.size * piece.n_rows / rows[piece.path] / BLOCK) for piece in pieces))
