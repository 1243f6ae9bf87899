"""Plan an attempt: the shards of a finished output with rows to try again, and the settings of the attempt."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from common.config import runtime_keys
from common.errors import UserError
from common.text import one_line
from pipeline.config import PipelineConfig
from pipeline.derive.settings import OF_ONE_RUN, check_keys, read_config
from pipeline.derive.workers import map_shards, with_progress
from pipeline.lease import Lease
from pipeline.paths import check_no_query, with_absolute_paths
from pipeline.provenance import make_provenance
from pipeline.read.listing import list_files
from pipeline.read.takedown import read_takedown
from pipeline.report.shards import check_finished, read_manifests
from pipeline.report.stats import sum_rows
from pipeline.resume.finished import formats_by_hash, formats_of
from pipeline.resume.listing import list_output
from pipeline.resume.plan import Work, plan_work
from pipeline.resume.record import read_record
from pipeline.retry.ledger import count_rows
from pipeline.retry.options import may_be_retried
from pipeline.write.attempts import discard_attempts, group_attempts
from pipeline.write.restore import restore_index
from pipeline.write.store import Store
from schemas.attempts import attempt_of
from schemas.files import INDEX_FILE, JOB_FILE
from schemas.manifest import Manifest, Provenance

logger = logging.getLogger("hypergrit")

TAKEN: Final = {"download", *runtime_keys(PipelineConfig)} - {*OF_ONE_RUN, "dry_run_rows", "dry_run_seed"}
"""Settings that may differ in an attempt."""

Attempts = Sequence[Manifest]
"""The attempts at a shard, the job's first."""


def settings_of_attempt(store: Store, output: str, changes: Sequence[str]) -> tuple[PipelineConfig, PipelineConfig]:
    """Return the settings of the job that wrote an output, and those of an attempt. Raises UserError."""
    old = dataclasses.replace(read_config(store), output=output)
    new = with_absolute_paths(dataclasses.replace(read_config(store, changes), output=output))
    check_keys(changes, TAKEN, "retry")
    if new.read.takedown is not None:
        read_takedown(new.read.takedown)
    return old, new


def plan_job(store: Store, config: PipelineConfig) -> tuple[Work, Provenance]:
    """Return the shards of the job that wrote an output, and its provenance.

    Raises UserError if the job could not be resumed: other versions, models or input, or an output that the job did not
    write.
    """
    if read_record(store) is None:
        raise UserError(
            f"{store.url(JOB_FILE)} does not exist; retry needs an output of the job or of refilter: retry the source "
            "of this output, and make it again"
        )
    files = list_files(config.input)
    check_no_query(config, [path for path, _ in files])
    provenance = make_provenance(config)
    try:
        return plan_work(config, files, provenance, store), provenance
    except UserError as error:
        raise UserError(f"retry needs an output with which the job can be resumed: {error}") from error


def finished_groups(store: Store, work: Work, config: PipelineConfig) -> Sequence[Attempts]:
    """Return the attempts at each finished shard; removes attempts of which an earlier one has gone, and restores indices.

    Raises UserError if no shard is finished, or one has no arrow/.
    """
    listing, manifests = list_output(store), {manifest["shard"]: manifest for manifest in read_manifests(store)}
    discard_attempts(store, [index for index in listing.committed() if attempt_of(index) and index not in manifests])
    written = formats_by_hash(config)
    for shard, manifest in manifests.items():
        name = store.file(INDEX_FILE, shard)
        if attempt_of(shard) and name in manifest["files"] and listing.size(name) is None:
            restore_index(store, manifest, formats_of(manifest, written))
    finished = {plan.index for plan in work.plans} - {plan.index for plan in work.unfinished}
    groups = [attempts for attempts in group_attempts(manifests.values()) if attempts[0]["shard"] in finished]
    check_finished(store, groups)
    for attempts in groups:
        if "arrow" not in attempts[0]["formats"]:
            raise UserError(
                f"shard {attempts[0]['shard']} of {store.root} has no arrow/ file, which names the dropped rows; run the "
                "job again with formats=[arrow,...]"
            )
    if work.unfinished:
        logger.warning("%d shards are not finished, and left to the job", len(work.unfinished))
    return groups


def count_in_shards(
    store: Store, groups: Sequence[Attempts], reasons: tuple[str, ...], config: PipelineConfig, lease: Lease
) -> Iterator[tuple[int, int | None]]:
    """Yield the index of each shard that may have rows to try again with their number, None if it cannot be read."""
    chosen = [attempts for attempts in groups if may_have_rows(attempts, reasons)]
    results = lease.guard(map_shards(partial(count_rows, config.output, reasons), chosen, config.ray))
    for attempts, result in with_progress(results, len(chosen), "rows to try again", config):
        index = attempts[0]["shard"]
        if isinstance(result, Exception):
            logger.warning("shard %d of %s cannot be read, and is left out: %s", index, store.root, one_line(result))
        yield index, None if isinstance(result, Exception) else result


def may_have_rows(attempts: Attempts, reasons: tuple[str, ...]) -> bool:
    """Return True if the counts of a shard have a drop that `reasons` may name."""
    dropped = sum_rows(attempts)["dropped"].get("download", {})
    return any(may_be_retried(reasons, reason) for reason in dropped)
