"""Write an output whose shards are made from finished shards: resumable, with the files and the report of a job."""

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from hypergrit_common.config import RESOLVED_FILE, to_yaml
from hypergrit_common.errors import UserError
from hypergrit_common.remote import map_concurrently
from hypergrit_common.text import counted
from pipeline.config import PipelineConfig, runtime_settings
from pipeline.output.commit import open_output
from pipeline.output.listing import list_output
from pipeline.output.lock import Lease
from pipeline.output.manifest import is_same, read_manifest
from pipeline.output.record import write_command, write_record
from pipeline.output.store import Store, check_own_files
from pipeline.output.takedowns import is_obeyed
from pipeline.output.write.stage import write_shard
from pipeline.read.types import ShardPlan, Task
from pipeline.report.summary import report
from pipeline.run.loop import JobResult, Run, connected
from pipeline.run.provenance import check_apart, check_writable
from pipeline.run.steps import Done, Recipe
from schemas.files import JOB_FILE, MANIFEST_FILE, REPORT_FILE, STATS_FILE
from schemas.job import JobRecord, LeftOut
from schemas.manifest import Manifest, Origin, Provenance, SourceShard

logger = logging.getLogger("hypergrit")


@dataclass(frozen=True)
class NewShard:
    """A shard that a command makes."""

    plan: ShardPlan
    provenance: Provenance
    origin: Origin


MakeTable = Callable[[NewShard], pa.Table]
"""Makes the SCORED table of a shard, in a worker; must be picklable."""
Plan = Callable[[Store, Lease], Sequence[NewShard]]
Prepare = Callable[[Store, Lease], object]


def write_output(
    make_table: MakeTable,
    plan: Plan,
    sources: Sequence[Store],
    config: PipelineConfig,
    left_out: Sequence[LeftOut] = (),
    record: JobRecord | None = None,
    prepare: Prepare | None = None,
) -> JobResult:
    """Make the shards that are not finished, and write the report.

    `left_out` are unfinished shards of the sources, which are recorded. `record` lets the job itself resume the output.
    `plan` gives the shards; `prepare` is called before the first one is made. No other command can write to the output
    meanwhile.

    Raises UserError if the output holds other shards and `overwrite` is not set, if it is a source or in the
    folder of one, if it cannot be written, or if rows were taken down from a source meanwhile.
    """
    store = Store(config.output)
    check_apart(store, sources)
    check_own_files(store)
    check_writable(store)
    with open_output(store) as lease:
        inherit_takedowns(store, sources, config.write.strip_url_queries)
        shards = plan(store, lease)
        finished, others = finished_shards(store, shards)
        check_overwrite(store, config.overwrite, others.values())
        logger.info("%s, %d finished before", counted(len(shards), "shard"), len(finished))
        planned = {shard.plan.index for shard in shards}
        store.discard(others, planned)
        write_command(store, shards[0].origin["command"], sorted(planned), sources, left_out)
        if record is not None:
            write_record(store, record)
        else:
            store.remove([JOB_FILE])  # of another command, whose shards have been discarded
        store.write(RESOLVED_FILE, to_yaml(dataclasses.replace(config, overwrite=False, dry_run=False)))
        left = [shard for shard in shards if shard.plan.index not in finished]
        with connected(config.ray) if left else nullcontext():
            if left and prepare is not None:
                prepare(store, lease)
            tasks = [Task(shard.plan.index, shard.plan.n_rows, shard) for shard in left]
            run = Run(config, lease, records=True, limited=tasks)
            run.finish(Recipe.calling(partial(commit, make_table, config, lease.token), "written"), tasks)
        lease.check()
        store.remove_drafts()
        stats = report(config, store, [shard.plan.index for shard in shards])
        # The last thing of all: a takedown that ends later has not ended during this command.
        if inherit_takedowns(store, sources, config.write.strip_url_queries):
            store.remove([STATS_FILE, REPORT_FILE])
            raise UserError(
                "rows were taken down from a source while it was copied; run the same command again with overwrite=true"
            )
    return JobResult(len(run.failed), stats["rows"]["kept"])


def inherit_takedowns(store: Store, sources: Sequence[Store], strips: bool) -> bool:
    """Record in an output what was taken down from its sources until now; return whether some of it is new."""
    before = store.takedowns
    for entries in (source.read_takedowns() for source in sources):
        store.record_takedowns(entries.without_queries(strips))
    return store.takedowns != before


def check_overwrite(store: Store, overwrite: bool, others: Collection[bool]) -> None:
    """Raise UserError if the output holds finished shards of another command and `overwrite` is not set.

    `others` has an item for each of them, which tells whether it `is_outdated`.
    """
    if others and not overwrite:
        n_old = sum(others)
        reason = f" ({n_old} made before a shard of a source changed, such as by takedown or retry)" if n_old else ""
        raise UserError(
            f"the output {store.root} holds {counted(len(others), 'finished shard')} that this command would discard"
            f"{reason}; give overwrite=true to replace them, or another output="
        )


def source_hashes(sources: Iterable[SourceShard]) -> Mapping[tuple[Any, Any], Any]:
    """Return the hashes of the manifests of shards by output and index."""
    return {(made.get("output"), made.get("shard")): made.get("manifest") for made in sources}


def is_outdated(manifest: Manifest | None, now: Mapping[tuple[Any, Any], Any]) -> bool:
    """Return True for a shard that was made from a shard whose manifest has another hash `now`."""
    made = source_hashes(manifest.get("origin", {}).get("sources", ())) if manifest else {}
    return any(made[shard] != now[shard] for shard in made.keys() & now.keys())


def finished_shards(store: Store, shards: Sequence[NewShard]) -> tuple[set[int], dict[int, bool]]:
    """Return the finished shards of an output that are among `shards`, and the others with whether each `is_outdated`.

    A shard of which a file is missing or has another size, or which has rows that were taken down since, is neither; its
    manifest is removed.
    """
    listing = list_output(store)
    wanted = {shard.plan.index: shard for shard in shards}
    now = source_hashes(made for shard in shards for made in shard.origin["sources"])
    finished, damaged, others = set[int](), set[int](), dict[int, bool]()

    def judge(index: int) -> bool | set[int]:
        shard, manifest = wanted.get(index), read_manifest(store, index)
        if shard is None or manifest is None or not is_same(manifest, shard.plan, [shard.provenance]):
            return is_outdated(manifest, now)
        if manifest.get("origin") != shard.origin:
            return is_outdated(manifest, now)
        sizes = {name: facts["bytes"] for name, facts in manifest["files"].items()}
        is_whole = all(listing.size(name) == size for name, size in sizes.items())
        return finished if is_whole and is_obeyed(store, manifest) else damaged

    indices = listing.committed()
    for index, found in zip(indices, map_concurrently(judge, indices), strict=True):
        if isinstance(found, bool):
            others[index] = found
        else:
            found.add(index)
    store.remove_many(MANIFEST_FILE.path(index) for index in damaged)
    return finished, others


def commit(make_table: MakeTable, config: PipelineConfig, lease: str, shard: NewShard) -> Done:
    """Make a shard and commit it. Raises UserError if the lease with this token does not hold the output any more."""
    table, runtime = make_table(shard), runtime_settings(config)
    plan, provenance = shard.plan, shard.provenance
    manifest = write_shard(table, plan, config.write, config.output, provenance, runtime, shard.origin, lease)
    return Done(manifest, ())
