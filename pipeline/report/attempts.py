"""Read the rows of all attempts at a shard: a row counts with its result in the last attempt that has it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.report.shards import read_batches
from pipeline.write.store import Store
from schemas.attempts import attempt_of
from schemas.manifest import Manifest


class Result(NamedTuple):
    """The result of a row in an attempt: the stage and the reason that dropped it, None for a kept row."""

    attempt: int
    stage: str | None
    reason: str | None


def read_latest(store: Store, attempts: Sequence[Manifest], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all attempts at a shard with at least these columns, without those of which a later one has the key.

    Raises UserError if a file is damaged.
    """
    for number, manifest in enumerate(attempts):
        replaced = keys_of(store, attempts[number + 1 :])
        if not len(replaced):
            yield from read_batches(store, manifest, columns)
            continue
        for batch in read_batches(store, manifest, tuple(dict.fromkeys(("key", *columns)))):
            yield batch.filter(pc.invert(pc.is_in(batch["key"], replaced)))


def keys_of(store: Store, manifests: Sequence[Manifest]) -> pa.ChunkedArray:
    """Return the keys of all rows of these shards. Raises UserError if a file is damaged."""
    chunks = [batch["key"] for manifest in manifests for batch in read_batches(store, manifest, ("key",))]
    return pa.chunked_array(chunks, pa.string())


def last_results(store: Store, attempts: Sequence[Manifest]) -> dict[str, Result]:
    """Return the last result of each row of a shard by its key. Raises UserError if a file is damaged."""
    results: dict[str, Result] = {}
    for manifest in attempts:
        attempt = attempt_of(manifest["shard"])
        for batch in read_batches(store, manifest, ("key", "stage", "reason")):
            columns = (batch[name].to_pylist() for name in ("key", "stage", "reason"))
            results.update({key: Result(attempt, stage, reason) for key, stage, reason in zip(*columns, strict=True)})
    return results
