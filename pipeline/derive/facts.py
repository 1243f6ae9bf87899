"""Collect what dedupe compares: URL, SHA-256 and perceptual hash of the kept rows of each shard."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from common.errors import UserError
from common.image_codec import ImageRejected
from common.images import STORED_IMAGE_LIMITS, decode
from common.remote import map_concurrently
from pipeline.config import RayConfig
from pipeline.derive.combine import key_number
from pipeline.derive.phash import N_BITS, perceptual_hash
from pipeline.derive.source import read_table, unchanged_manifest
from pipeline.derive.workers import map_shards
from pipeline.report.shards import read_batches
from pipeline.write.store import Store
from schemas.files import FACTS_FILE
from schemas.manifest import SourceShard
from schemas.rows import SCORED
from schemas.status import KEPT

FACTS = pa.schema(
    [("key", pa.int64()), ("url", pa.string()), ("sha256", pa.string()), ("phash", pa.int64()), ("shard", pa.int32())]
)
"""A kept row: the number that its key is, and what is compared; `phash` is null if pictures are not compared."""
MADE_FROM = b"made_from"
AT_ONCE = 64
"""Number of files that are read or written at the same time."""


def collect_facts(
    sources: Sequence[SourceShard], with_pictures: bool, output: str, config: RayConfig
) -> Iterator[SourceShard]:
    """Write the facts of all shards that `output` lacks; yield the shards, each when it is done.

    The files of an interrupted command are used again. Raises the exception of a shard that cannot be read.
    """
    store = Store(output)
    missing = list[SourceShard]()
    for source, facts in read_all(store, sources, with_pictures):
        if facts is None:
            missing.append(source)
        else:
            yield source
    for source, result in map_shards(partial(write_facts, output, with_pictures), missing, config):
        if isinstance(result, Exception):
            raise result
        yield source


def write_facts(output: str, with_pictures: bool, source: SourceShard) -> None:
    """Write the facts of a shard to the output."""
    table = make_facts(source, with_pictures)
    store = Store(output)
    store.write_bytes(store.file(FACTS_FILE, source["shard"]), encode(table, made_from(source, with_pictures)))


def read_all(
    store: Store, sources: Sequence[SourceShard], with_pictures: bool
) -> Iterator[tuple[SourceShard, pa.Table | None]]:
    """Yield each shard with its facts, or None (`read_facts`); `AT_ONCE` of them are in memory."""
    tables = map_concurrently(partial(read_facts, store, with_pictures=with_pictures), sources, AT_ONCE)
    yield from zip(sources, tables, strict=True)


def read_facts(store: Store, source: SourceShard, with_pictures: bool) -> pa.Table | None:
    """Return the facts of a shard; None if the output has none, or those of another shard, or damaged ones."""
    content = store.read(store.file(FACTS_FILE, source["shard"]))
    try:
        return None if content is None else decode_table(content, made_from(source, with_pictures))
    except (pa.ArrowException, ValueError):
        return None


def make_facts(source: SourceShard, with_pictures: bool) -> pa.Table:
    """Return the facts of the kept rows of a shard. Raises UserError if it cannot be read."""
    columns = ("key", "url", "sha256", "status")
    if with_pictures:
        table = read_table(source["output"], source)
    else:
        store = Store(source["output"])
        batches = read_batches(store, unchanged_manifest(store, source), columns)
        schema = pa.schema([SCORED.field(name) for name in columns])
        parts = [pa.Table.from_batches([batch]).select(columns).cast(schema) for batch in batches]
        table = pa.concat_tables(parts) if parts else schema.empty_table()
    table = table.filter(pc.equal(table["status"], KEPT))
    keys = table["key"].to_pylist()
    hashes: list[int | None] = [None] * len(table)
    if with_pictures:
        hashes = [signed_hash(*pair) for pair in zip(table["image"].to_pylist(), keys, strict=True)]
    return pa.table(
        {
            "key": [key_number(key, source["output"]) for key in keys],
            "url": table["url"],
            "sha256": table["sha256"],
            "phash": hashes,
            "shard": [source["shard"]] * len(table),
        },
        schema=FACTS,
    )


def signed_hash(image: bytes, key: str) -> int:
    """Return the perceptual hash of a stored image as the signed integer with the same bits.

    Raises UserError, naming the row, if the image cannot be decoded.
    """
    try:
        value = perceptual_hash(decode(image, STORED_IMAGE_LIMITS))
    except ImageRejected as error:
        raise UserError(f"row {key}: its stored image cannot be decoded ({error}); see pipeline.verify") from error
    return value - (1 << N_BITS) if value >> (N_BITS - 1) else value


def made_from(source: SourceShard, with_pictures: bool) -> bytes:
    """Return the identity of the facts of a shard, by which those of another source are recognised."""
    text = json.dumps([source, with_pictures], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest().encode()


def encode(table: pa.Table, identity: bytes) -> bytes:
    """Return a table with its identity as the content of an Arrow file."""
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({MADE_FROM: identity})
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table.cast(schema))
    return sink.getvalue().to_pybytes()


def decode_table(content: bytes, identity: bytes) -> pa.Table | None:
    """Return the table in an Arrow file, or None if it has another identity. Raises ArrowException, ValueError."""
    table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
    table.validate(full=True)
    return table if (table.schema.metadata or {}).get(MADE_FROM) == identity else None
