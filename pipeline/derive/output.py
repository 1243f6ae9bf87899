"""Write an output whose shards are made from finished shards: resumable, with the files and the report of a job."""

import dataclasses
import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from common.config import RESOLVED_FILE, to_yaml
from common.errors import UserError
from common.remote import map_concurrently
from common.text import counted, one_line
from pipeline.config import PipelineConfig, runtime_settings
from pipeline.derive.workers import connected, map_shards, with_progress
from pipeline.job import remove_drafts, report
from pipeline.lease import Lease, hold_lease
from pipeline.paths import check_apart, check_writable
from pipeline.read.types import ShardPlan
from pipeline.resume.command import write_command
from pipeline.resume.listing import list_output
from pipeline.resume.record import write_record
from pipeline.write.failed import failed_shard, write_failed
from pipeline.write.layout import settle_layout
from pipeline.write.manifest import is_same, read_manifest
from pipeline.write.pending import check_nothing_pending
from pipeline.write.stage import write_shard
from pipeline.write.store import Store
from schemas.attempts import attempt_of
from schemas.files import JOB_FILE, MANIFEST_FILE
from schemas.job import JobRecord, LeftOut
from schemas.manifest import Manifest, Origin, Provenance, Retry

logger = logging.getLogger("hypergrit")


@dataclass(frozen=True)
class NewShard:
    """A shard that a command makes; `retry` is that of its source, if pipeline.retry made it."""

    plan: ShardPlan
    provenance: Provenance
    origin: Origin
    retry: Retry | None = field(default=None, kw_only=True)


MakeTable = Callable[[NewShard], pa.Table]
"""Makes the SCORED table of a shard, in a worker; must be picklable."""
Prepare = Callable[[Store, Lease], None]


def write_output(
    make_table: MakeTable,
    shards: Sequence[NewShard],
    config: PipelineConfig,
    left_out: Sequence[LeftOut] = (),
    record: JobRecord | None = None,
    prepare: Prepare | None = None,
) -> int:
    """Make the shards that are not finished, and write the report; return the number of shards that failed.

    `left_out` are unfinished shards of the sources, which are recorded. `record` lets the job itself resume the output.
    `prepare` is called before the first shard is made, while no other command can write to the output.

    Raises UserError if the output holds other shards and `overwrite` is not set, if it is a source or in the
    folder of one, or if it cannot be written.
    """
    store = Store(config.output)
    sources = {source["output"] for shard in shards for source in shard.origin["sources"]}
    check_apart(store, map(Store, sorted(sources)))
    check_writable(store)
    with hold_lease(store) as lease:
        check_nothing_pending(store)
        remove_drafts(store)
        finished, others = finished_shards(store, shards)
        if others and not config.overwrite:
            raise UserError(
                f"the output {store.root} holds {counted(len(others), 'finished shard')} that this command would discard; "
                "give overwrite=true to replace them, or another output="
            )
        logger.info("%s, %d finished before", counted(len(shards), "shard"), len(finished))
        planned = {shard.plan.index for shard in shards}
        settle_layout(store, sum(not attempt_of(index) for index in planned))
        store.remove_many(store.file(MANIFEST_FILE, index) for index in others)
        store.remove_many(name for index in others if index not in planned for name in store.shard_files(index))
        store.write(RESOLVED_FILE, to_yaml(dataclasses.replace(config, overwrite=False, dry_run=False)))
        if record is not None:
            write_record(store, record)
        else:
            store.remove([JOB_FILE])  # of another command, whose shards have been discarded
        write_command(store, shards[0].origin["command"], sorted(planned), left_out)
        left = [shard for shard in shards if shard.plan.index not in finished]
        with connected(config.ray) if left else nullcontext():
            if left and prepare is not None:
                prepare(store, lease)
            n_failed = make_shards(make_table, left, config, store, lease)
        lease.check()
        remove_drafts(store)
        report(config, [shard.plan for shard in shards])
    return n_failed


def make_shards(
    make_table: MakeTable, shards: Sequence[NewShard], config: PipelineConfig, store: Store, lease: Lease
) -> int:
    """Make and commit shards; return the number of those that failed, which have a record. Raises UserError of a shard."""
    n_failed = 0
    results = lease.guard(map_shards(partial(commit, make_table, config, lease.token), shards, config.ray))
    for shard, result in with_progress(results, len(shards), "written", config):
        if isinstance(result, UserError):
            raise result
        if isinstance(result, Exception):
            n_failed += 1
            record_failure(store, shard, result)
    return n_failed


def finished_shards(store: Store, shards: Sequence[NewShard]) -> tuple[set[int], set[int]]:
    """Return the indices of the finished shards of an output that are among `shards`, and those of other shards.

    A shard of which a file is missing or has another size is neither; its manifest is removed.
    """
    listing = list_output(store)
    wanted = {shard.plan.index: shard for shard in shards}
    finished, damaged, others = set[int](), set[int](), set[int]()

    def judge(index: int) -> set[int]:
        shard, manifest = wanted.get(index), read_manifest(store, index)
        if shard is None or manifest is None or not is_made_from(manifest, shard):
            return others
        sizes = {name: facts["bytes"] for name, facts in manifest["files"].items()}
        return finished if all(listing.size(name) == size for name, size in sizes.items()) else damaged

    indices = listing.committed()
    for index, found in zip(indices, map_concurrently(judge, indices), strict=True):
        found.add(index)
    store.remove_many(store.file(MANIFEST_FILE, index) for index in damaged)
    return finished, others


def is_made_from(manifest: Manifest, shard: NewShard) -> bool:
    """Return True if a manifest is that of this shard."""
    return is_same(manifest, shard.plan, [shard.provenance]) and manifest.get("origin") == shard.origin


def commit(make_table: MakeTable, config: PipelineConfig, lease: str, shard: NewShard) -> None:
    """Make a shard and commit it. Raises UserError if the lease with this token does not hold the output any more."""
    table, runtime = make_table(shard), runtime_settings(config)
    write_shard(
        table, shard.plan, config.write, config.output, shard.provenance, runtime, shard.origin, shard.retry, lease
    )


def record_failure(store: Store, shard: NewShard, error: Exception) -> None:
    """Write the record of a failed shard, and log it in one line."""
    text = f"{type(error).__name__}: {one_line(error)}"
    trace = "".join(traceback.format_exception(error))
    write_failed(store, failed_shard(shard.plan, "write", text, trace, attempts=1))
    logger.warning("shard %d failed, the others go on: %s", shard.plan.index, text)
