"""The main job: plan the shards, compute those that are not finished, write the statistics and the report."""

import dataclasses
import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from common.cli import logs_json, notify
from common.config import RESOLVED_FILE, to_yaml
from common.config_help import print_text
from common.text import counted
from pipeline.compute import Failures, compute, with_limits
from pipeline.config import PipelineConfig, content_hash, with_formats
from pipeline.lease import Lease, hold_lease
from pipeline.missing import check_rows, settle_missing
from pipeline.paths import check_no_query, check_output_outside_input, check_writable, with_absolute_paths
from pipeline.provenance import make_provenance
from pipeline.read.listing import list_files
from pipeline.read.takedown import read_takedown
from pipeline.read.types import ShardPlan
from pipeline.report.html import make_report
from pipeline.report.stats import build_stats, read_run
from pipeline.report.summary import summary_table
from pipeline.resume.finished import Damage, Formats, find_damaged
from pipeline.resume.listing import list_output
from pipeline.resume.plan import Work, plan_work
from pipeline.write.attempts import discard_attempts
from pipeline.write.manifest import read_manifest
from pipeline.write.pending import check_nothing_pending
from pipeline.write.restore import restore_index
from pipeline.write.store import Store
from pipeline.write.temporary import remove_abandoned
from schemas.attempts import attempt_of, shard_of
from schemas.files import (
    FAILED_FOLDER,
    MANIFEST_FILE,
    OUTPUT_FOLDERS,
    REPORT_FILE,
    ROLLUP_FOLDER,
    RUN_TIMINGS_FILE,
    STATS_FILE,
)
from schemas.manifest import Provenance, RunTimings
from schemas.stats import Statistics

logger = logging.getLogger("hypergrit")


class Result(NamedTuple):
    """The end of a job: the number of failures, which are failed shards and damaged input files, and of rows kept."""

    n_failures: int
    n_kept: int


def run(config: PipelineConfig) -> int:
    """Run a job as `run_job` does; return the number of failures."""
    return run_job(config).n_failures


def run_job(config: PipelineConfig, command: str = "") -> Result:
    """Plan the shards, compute those that are not finished, and write the report, which shows the `command`.

    Raises UserError for errors that the user can fix, if possible before anything is computed.
    """
    config = with_absolute_paths(config)
    files = list_files(config.input)
    check_no_query(config, [path for path, _ in files])  # a listing of a web server may hold signed links
    check_output_outside_input(config, [path for path, _ in files])
    output = Store(config.output)
    check_writable(output)
    if config.read.takedown is not None:
        read_takedown(config.read.takedown)
    with hold_lease(output) as lease:
        check_nothing_pending(output)
        provenance = make_provenance(config)
        work = plan_work(config, files, provenance, output)
        n_shards = len(work.plans)
        logger.info("%s", describe_work(work, output))
        lease.check()
        remove_drafts(output)
        work.begin(output)
        n_failed, failures, start = 0, Failures(), time.perf_counter()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        if work.unfinished:
            output.write(RESOLVED_FILE, to_yaml(dataclasses.replace(config, overwrite=False)))
            limited = with_limits(config, work.unfinished)
            n_failed = compute_in_formats(
                work.unfinished, work.formats, limited, provenance, output, lease, failures, work.plans
            )
            remove_drafts(output)
        lease.check()
        # An object store is resumed from a listing alone, so its manifests are compared after the shards are done.
        damages = work.unindexed if output.is_local else find_damaged(output, work.plans, config, provenance)
        damages = [damage for damage in damages if not restored(damage, output)]
        computed = [*work.unfinished, *(damage.plan for damage in damages)] if damages else work.unfinished
        if damages:
            limited = with_limits(config, computed)
            n_failed += mend(damages, limited, provenance, output, lease, failures, work.plans)
        again = with_limits(config, computed)
        formats = work.formats | {damage.plan.index: damage.formats for damage in damages}
        n_failed += settle_missing(
            work.plans, again, output, failures,
            lambda plans: compute_in_formats(plans, formats, again, provenance, output, lease, failures, work.plans),
        )  # fmt: skip
        if computed:
            timings: RunTimings = {
                "wall_seconds": time.perf_counter() - start,
                "shards": len(computed) - n_failed,
                "rows": sum(plan.n_rows for plan in computed),
                "started": started,
                "command": command,
            }
            output.write(RUN_TIMINGS_FILE, json.dumps(timings))
        stats = report(config, work.plans)
        check_rows(stats, work.plans, output)
        n_kept = stats["rows"]["kept"]
    n_damaged = len(work.damaged)
    if n_damaged:
        noun = "input file is" if n_damaged == 1 else "input files are"
        text = f"{n_damaged} {noun} damaged, and only the rows before the damage were read, see {STATS_FILE}"
        notify(f"{text}; the first: {work.damaged[0]}")
    if n_failed:
        text = f"{n_failed} of {counted(n_shards, 'shard')} failed, see {config.output}/{FAILED_FOLDER}/"
        notify(f"{text}; run the same command again to try them again")
    return Result(n_failed + n_damaged, n_kept)


def describe_work(work: Work, output: Store) -> str:
    """Describe in a line what the job has to do, and what was done before, when and by which run."""
    n_rows, n_finished = sum(plan.n_rows for plan in work.plans), len(work.plans) - len(work.unfinished)
    text = f"{counted(n_rows, 'row')} in {counted(len(work.plans), 'shard')}"
    if not n_finished:
        return text
    started = read_run(output).get("started", "")
    before = f" (last run: {started})" if started else ""
    if not work.unfinished:
        return f"{text}, all finished before{before}: only the report is written again"
    return f"{text}, {n_finished} finished before{before}, {len(work.unfinished)} to compute"


def remove_drafts(output: Store) -> None:
    """Remove the files that killed workers have left half-written; an object store has none."""
    if output.is_local:
        folders = (output.path(folder) for folder in OUTPUT_FOLDERS)
        remove_abandoned(
            [output.root, output.path(ROLLUP_FOLDER), *folders], in_subfolders=bool(output.layout.per_folder)
        )


def compute_in_formats(
    plans: Sequence[ShardPlan],
    formats: Mapping[int, Formats],
    config: PipelineConfig,
    provenance: Provenance,
    output: Store,
    lease: Lease,
    failures: Failures,
    mates: Sequence[ShardPlan] = (),
) -> int:
    """Compute shards; return the number that failed. `failures` are those of the whole job, for its limits, and
    `mates` all its shards.

    Shards in `formats` are written in these formats, others in those of the configuration. The former come first: as
    long as they have no manifest, nothing tells a later run that they had more formats.
    """
    if not formats:
        return compute(plans, config, provenance, output, lease, failures, mates)
    groups: dict[Formats, list[ShardPlan]] = {}
    for plan in sorted(plans, key=lambda plan: (plan.index not in formats, plan.index)):
        groups.setdefault(formats.get(plan.index, config.write.formats), []).append(plan)
    n_failed = 0
    for names, group in groups.items():
        if names == config.write.formats:
            n_failed += compute(group, config, provenance, output, lease, failures, mates)
            continue
        other = with_formats(config, names)
        changed: Provenance = {**provenance, "config_hash": content_hash(other)}
        n_failed += compute(group, other, changed, output, lease, failures, mates)
    return n_failed


def restored(damage: Damage, output: Store) -> bool:
    """Restore the index of a shard that lacks nothing else; return False if the shard has to be computed again."""
    index = damage.plan.index
    manifest = read_manifest(output, index) if damage.only_index else None
    if manifest is None or not restore_index(output, manifest, damage.formats):
        return False
    logger.warning("the index of shard %d was missing or truncated; restored from the headers of its tars", index)
    return True


def mend(
    damages: Sequence[Damage],
    config: PipelineConfig,
    provenance: Provenance,
    output: Store,
    lease: Lease,
    failures: Failures,
    mates: Sequence[ShardPlan] = (),
) -> int:
    """Compute shards again whose files or manifests are not those of the job; return the number that failed."""
    logger.warning(
        "%s with missing or truncated files, or a manifest of other settings; computed again",
        counted(len(damages), "finished shard"),
    )
    indices = {damage.plan.index for damage in damages}
    discard_attempts(output, [i for i in list_output(output).committed() if attempt_of(i) and shard_of(i) in indices])
    output.remove_many(output.file(MANIFEST_FILE, index) for index in indices)
    formats = {damage.plan.index: damage.formats for damage in damages}
    plans = [damage.plan for damage in damages]
    return compute_in_formats(plans, formats, config, provenance, output, lease, failures, mates)


def report(config: PipelineConfig, plans: Sequence[ShardPlan]) -> Statistics:
    """Write stats.json and report.html, print summary and warnings, and return the statistics."""
    return report_shards(config, [plan.index for plan in plans])


def report_shards(config: PipelineConfig, indices: Collection[int]) -> Statistics:
    """Write stats.json and report.html of these shards, print summary and warnings, and return the statistics.

    The caller holds the lease of the output.
    """
    stats = build_stats(config.output, shards=indices, holds_lease=True)
    advice = make_report(Store(config.output), stats, config.report)
    if config.report.summary and not config.quiet and not logs_json():
        print_text(summary_table(stats))
    for warning in advice:
        notify(f"warning: {warning.text}; {warning.action}")
    if logs_json():
        logger.info("report: %s/%s", config.output, REPORT_FILE)
    elif not config.quiet:
        print_text(f"report: {config.output}/{REPORT_FILE}")
    return stats
