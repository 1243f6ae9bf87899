"""Read the pipeline's `_index/`: the places of the samples of a shard, without its headers."""

import hashlib
import logging
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import UserError
from common.remote import open_file, store_errors
from common.tar import BLOCK
from schemas.files import INDEX_SUBREDDITS
from trainer.data.index import MAX_SHARD_BYTES, ShardIndex
from trainer.data.layouts import is_needed
from trainer.data.listing import ShardFacts

logger = logging.getLogger(__name__)

COLUMNS: Final = ("format", "offset", "size", "members")


def read_index(facts: ShardFacts, needs: frozenset[str] | None) -> ShardIndex | None:
    """Read the index of a shard if its manifest names one, else return None.

    A range ends with the last member that `needs` asks for (`trainer.data.layouts.is_needed`); None: the whole sample.
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
            content = file.read(facts.files[path]["bytes"] + 1)
        if hashlib.sha256(content).hexdigest() != facts.files[path]["sha256"]:
            raise ValueError("it differs from its hash in the manifest")
        starts, ends = sample_ranges(content, facts.place.folder, needs)
        if len(starts) and (ends.max() > facts.size or starts.min() < 0 or facts.size > MAX_SHARD_BYTES):
            raise ValueError("it names bytes that the shard does not have")
    except store_errors(ValueError, KeyError, TypeError, pa.ArrowException) as error:
        logger.warning("%s cannot be used (%s); the shard is indexed from its headers", url, error)
        return None
    return ShardIndex.of(facts.url, facts.size, starts, ends)


def sample_ranges(
    content: bytes, kind: str, needs: frozenset[str] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first bytes and ends [n] of the samples of one format in the bytes of an index."""
    reader = pa.ipc.open_file(pa.BufferReader(content), options=pa.ipc.IpcReadOptions(use_threads=False))
    batch = reader.get_batch(0).select(COLUMNS)
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
