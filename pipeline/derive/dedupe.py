"""Drop the rows of an output that repeat another row of it, in whichever shards they are."""

import hashlib
import json
import logging
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from common.errors import UserError
from common.remote import map_concurrently
from common.text import counted
from pipeline.config import PipelineConfig
from pipeline.derive.combine import format_key, new_provenance
from pipeline.derive.duplicates import DROPS, Duplicates, database
from pipeline.derive.facts import AT_ONCE, collect_facts, decode_table, encode, read_all
from pipeline.derive.options import DedupeOptions
from pipeline.derive.output import NewShard, write_output
from pipeline.derive.settings import new_config, take_options, take_path
from pipeline.derive.source import Source, read_table
from pipeline.derive.workers import with_progress
from pipeline.lease import Lease
from pipeline.write.manifest import plan_from_json
from pipeline.write.store import Store
from pipeline.write.temporary import remove_abandoned_folders
from schemas.files import DROPS_FILE, FACTS_FILE
from schemas.table import Drop, drop_rows

logger = logging.getLogger("hypergrit")


def dedupe(arguments: Sequence[str]) -> int:
    """Write the output; return the number of shards that failed. Raises UserError."""
    output, rest = take_path(arguments, "output")
    folder, rest = take_path(rest, "source")
    options, changes = take_options(rest, DedupeOptions)
    source = Source(folder, options.incomplete)
    old = source.config
    new = new_config(source.store, changes, output, "dedupe")
    shards = plan_dedupe(source, old, new, options)
    n_failed = write_output(
        partial(make_table, output),
        shards,
        new,
        source.left_out,
        prepare=partial(find_duplicates, shards, new, options),
    )
    if not n_failed:
        store = Store(output)
        store.remove_many(store.file(kind, shard.plan.index) for shard in shards for kind in (FACTS_FILE, DROPS_FILE))
    return n_failed


def plan_dedupe(source: Source, old: PipelineConfig, new: PipelineConfig, options: DedupeOptions) -> list[NewShard]:
    """Return one shard for each shard of the source.

    The content of each depends on all of them, so their manifests are a setting.
    """
    identities = [source.shard(index) for index in source.manifests]
    digests = json.dumps([identity["manifest"] for identity in identities])
    settings: dict[str, Any] = {"by": options.criteria, "manifests": hashlib.sha256(digests.encode()).hexdigest()}
    settings |= {} if options.radius is None else {"radius": options.radius}
    return [
        NewShard(
            plan_from_json(manifest["plan"]),
            new_provenance(manifest, source, old, new),
            {"command": "dedupe", "sources": [identity], "settings": settings},
            retry=manifest.get("retry"),
        )
        for identity, manifest in zip(identities, source.manifests.values(), strict=True)
    ]


def find_duplicates(
    shards: Sequence[NewShard], config: PipelineConfig, options: DedupeOptions, store: Store, lease: Lease
) -> None:
    """Compare the rows of all shards, and write the rows to drop of each shard to the output."""
    remove_abandoned_folders(tempfile.gettempdir())
    sources = [shard.origin["sources"][0] for shard in shards]
    with_pictures = "picture" in options.criteria
    done = collect_facts(sources, with_pictures, config.output, config.ray)
    for _ in with_progress(lease.guard(done), len(sources), "read to compare", config):
        pass
    with database(options.memory_gb, config.ray.cpu_workers) as duplicates:
        for source, facts in read_all(store, sources, with_pictures):
            if facts is None:
                raise UserError(
                    f"{store.url(store.file(FACTS_FILE, source['shard']))} has gone; run the same command again"
                )
            duplicates.add(facts)
        logger.info("comparing the rows of %s", counted(len(sources), "shard"))
        duplicates.check_keys(sources[0]["output"])
        duplicates.find(options.criteria, options.radius or 0)
        lease.check()
        n_rows = write_drops(store, duplicates, [source["shard"] for source in sources], drops_identity(shards[0]))
    logger.info("%d duplicates found", n_rows)


def write_drops(store: Store, duplicates: Duplicates, indices: Sequence[int], identity: bytes) -> int:
    """Write the file of rows to drop of every shard, also if there are none; return the number of these rows."""
    found = duplicates.drops()
    index, table = next(found, (-1, DROPS.empty_table()))
    n_rows, files = 0, list[tuple[int, pa.Table]]()

    def write(file: tuple[int, pa.Table]) -> None:
        store.write_bytes(store.file(DROPS_FILE, file[0]), encode(file[1], identity))

    for place, shard in enumerate(indices, 1):
        files.append((shard, table if shard == index else DROPS.empty_table()))
        n_rows += len(files[-1][1])
        if shard == index:
            index, table = next(found, (-1, DROPS.empty_table()))
        if len(files) == AT_ONCE or place == len(indices):
            list(map_concurrently(write, files))
            files.clear()
    return n_rows


def drops_identity(shard: NewShard) -> bytes:
    """Return the identity of the files of rows to drop, which those of an earlier command do not have."""
    return json.dumps(shard.origin["settings"], sort_keys=True).encode()


def make_table(output: str, shard: NewShard) -> pa.Table:
    """Return the rows of a source shard, with the duplicates dropped. Raises UserError without a decision on them."""
    (source,) = shard.origin["sources"]
    table = read_table(source["output"], source)
    store = Store(output)
    content = store.read(store.file(DROPS_FILE, shard.plan.index))
    found = None if content is None else decode_table(content, drops_identity(shard))
    if found is None:
        raise UserError(f"{store.url(store.file(DROPS_FILE, shard.plan.index))} has gone; run the same command again")
    drops = {format_key(row["key"]): Drop(row["reason"], format_key(row["stays"])) for row in found.to_pylist()}
    keys = table["key"].to_pylist()
    return drop_rows(table, "write", {i: drops[key] for i, key in enumerate(keys) if key in drops})
