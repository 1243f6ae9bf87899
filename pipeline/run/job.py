"""The main job: plan the shards, compute those that are not finished, write the statistics and the report."""

import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from hypergrit_common.cli import logs_json, notify
from hypergrit_common.config import RESOLVED_FILE, to_yaml
from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.text import counted
from pipeline.config import PipelineConfig, content_hash, with_formats
from pipeline.output.commit import open_output, restore_index
from pipeline.output.finished import Damage, Formats, find_damaged, find_missing
from pipeline.output.manifest import failed_indices, failed_shard, read_manifest
from pipeline.output.record import check_secrets
from pipeline.output.resume import Work, plan_work
from pipeline.output.store import Store, check_own_files
from pipeline.output.takedowns import check_recorded
from pipeline.read.listing import InputFiles, list_files
from pipeline.read.takedown import listed
from pipeline.read.types import ShardPlan, Task
from pipeline.read.understood import input_lines, understood_input
from pipeline.report.stats import read_run
from pipeline.report.summary import report
from pipeline.run.loop import JobResult, Run
from pipeline.run.provenance import (
    check_models,
    check_no_query,
    check_output_outside_input,
    check_writable,
    make_provenance,
    with_absolute_paths,
)
from pipeline.run.steps import Recipe, Steps
from schemas.files import FAILED_FOLDER, JOB_FILE, MANIFEST_FILE, RUN_TIMINGS_FILE, STATS_FILE
from schemas.manifest import Provenance, RunTimings
from schemas.stats import Statistics

logger = logging.getLogger("hypergrit")


class Shards:
    """Computes shards of a job, each in its formats: those of `formats`, by index, or else of the configuration.

    `make` returns the steps of a worker. The methods raise like `Run.results`.
    """

    def __init__(
        self, run: Run, provenance: Provenance, formats: Mapping[int, Formats], make: Callable[..., Steps] = Steps
    ) -> None:
        assert run.lease is not None
        self.run, self.lease, self.output = run, run.lease, run.lease.store
        self.provenance, self.formats, self.make = provenance, dict(formats), make

    def recipes(self, plans: Iterable[ShardPlan]) -> Iterator[tuple[Recipe, list[ShardPlan]]]:
        """Divide shards by their formats, and yield how to compute each group.

        Shards in `formats` come first: as long as they have no manifest, nothing tells a later run that they had more
        formats. Those that failed in an earlier run come last.
        """
        groups, before = dict[Formats, list[ShardPlan]](), failed_indices(self.output)
        for plan in sorted(plans, key=lambda plan: (plan.index not in self.formats, plan.index in before, plan.index)):
            groups.setdefault(self.formats.get(plan.index, self.run.config.write.formats), []).append(plan)
        for names, group in groups.items():
            config = with_formats(self.run.config, names)
            provenance: Provenance = {**self.provenance, "config_hash": content_hash(config)}
            yield Recipe(partial(self.make, config, provenance, lease=self.lease.token), config), group

    def finish(self, plans: Iterable[ShardPlan]) -> None:
        """Compute and commit shards."""
        for recipe, group in self.recipes(plans):
            self.run.finish(recipe, group)

    def mend(self, damages: Sequence[Damage]) -> None:
        """Compute shards again whose files or manifests are not those of the job."""
        logger.warning(
            "%s with missing or truncated files, or a manifest of other settings; computed again",
            counted(len(damages), "finished shard"),
        )
        self.output.remove_many(MANIFEST_FILE.path(damage.plan.index) for damage in damages)
        self.formats |= {damage.plan.index: damage.formats for damage in damages}
        self.finish(damage.plan for damage in damages)

    def settle(self, plans: Sequence[ShardPlan]) -> None:
        """Compute those shards once more that are neither in the output nor failed; record what is missing then.

        A worker may see another folder at the path of the output, such as one whose disk is not mounted there.
        """
        missing = self.lost(plans)
        if not missing:
            return
        hosts = Counter(map(self.host, missing))
        logger.warning(
            "%s missing in the output %s although written, on %s: look if it is mounted there; computed again",
            counted(len(missing), "shard"), self.output.root, ", ".join(f"{host} ({n})" for host, n in hosts.most_common()),
        )  # fmt: skip
        self.finish(missing)
        for plan in self.lost(missing):
            error = (
                f"written on {self.host(plan)}, but not in the output {self.output.root}; look if it is mounted there"
            )
            self.run.fail(failed_shard(plan, "write", error, "", attempts=2))

    def lost(self, plans: Sequence[ShardPlan]) -> list[ShardPlan]:
        """Return the plans without a manifest whose shards have not failed in this run."""
        return [plan for plan in find_missing(self.output, plans) if plan.index not in self.run.failed]

    def host(self, plan: ShardPlan) -> str:
        """Return the name of the host that wrote a shard."""
        return self.run.hosts.get(plan.index) or "an unknown host"


def check_rows(stats: Statistics, plans: Sequence[ShardPlan], output: Store) -> None:
    """Raise UserError if the rows of the shards, read and unfinished, are not those that were planned."""
    planned, found = sum(plan.n_rows for plan in plans), stats["rows"]["read"]
    if found != planned:
        raise UserError(
            f"the output {output.root} accounts for {counted(found, 'row')}, but {planned} were planned; run the same command "
            "again, which computes the missing shards"
        )


def plan_with_models(config: PipelineConfig, files: InputFiles, provenance: Provenance, output: Store) -> Work:
    """Plan like `plan_work`. Raises UserError also for models that do not exist, if there is something to compute.

    They are checked as early as possible: for a new output before the whole input is read.
    """
    is_new = output.read(JOB_FILE) is None
    if is_new:
        check_models(config)
    work = plan_work(config, files, provenance, output)
    if work.unfinished and not is_new:
        check_models(config)
    return work


def run_job(config: PipelineConfig, command: str = "") -> JobResult:
    """Plan the shards, compute those that are not finished, and write the report, which shows the `command`.

    Raises UserError for errors that the user can fix, if possible before anything is computed.
    """
    config = with_absolute_paths(config)
    files = list_files(config.input)
    check_no_query(config, [path for path, _ in files])  # a listing of a web server may hold signed links
    check_output_outside_input(config, [path for path, _ in files])
    output = Store(config.output)
    check_own_files(output)
    check_writable(output)
    entries = listed(config.read.takedown).without_queries(config.write.strip_url_queries)
    with open_output(output) as lease:
        provenance = make_provenance(config)
        work = plan_with_models(config, files, provenance, output)
        if work.unfinished:  # before shards are discarded
            check_secrets(work.old_record, config)
        n_shards = len(work.plans)
        if len(work.unfinished) < n_shards:
            check_recorded(output, entries, config.read.takedown)
        tell_input(work, config.quiet)
        logger.info("%s", describe_work(work, output))
        lease.check()
        work.begin(output)
        output.record_takedowns(entries)
        start = time.perf_counter()
        run = Run(config, lease, records=True, limited=work.plans)
        shards = Shards(run, provenance, work.formats)
        if work.unfinished:
            output.write(RESOLVED_FILE, to_yaml(dataclasses.replace(config, overwrite=False)))
            shards.finish(work.unfinished)
            output.remove_drafts()
        lease.check()
        # An object store is resumed from a listing alone, so its manifests are compared after the shards are done.
        damages = work.unindexed if output.is_local else find_damaged(output, work.plans, config, provenance)
        damages = [damage for damage in damages if not restored(damage, output)]
        if damages:
            check_secrets(work.old_record, config)
            shards.mend(damages)
        shards.settle(work.plans)
        n_failed, computed = len(run.failed), [*work.unfinished, *(damage.plan for damage in damages)]
        if computed:
            write_run(output, start, computed, n_failed, command)
        stats = report(config, output, [plan.index for plan in work.plans])
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
    return JobResult(n_failed + n_damaged, n_kept)


def tell_input(work: Work, quiet: bool) -> None:
    """Print how the input was understood, or log it if the lines of the log are JSON."""
    found = understood_input(work.record)
    lines = (
        [] if found is None else list(input_lines(found, sum(len(batch["files"]) for batch in work.record["batches"])))
    )
    if logs_json():
        logger.info("%s", "; ".join(f"{label}: {text}" for label, text in lines))
    elif not quiet:
        print_text("\n".join(f"{label:10}{text}" for label, text in lines))


def write_run(output: Store, start: float, plans: Sequence[ShardPlan | Task], n_failed: int, command: str) -> None:
    """Write the facts about a run for these shards, which began at `start` of time.perf_counter."""
    seconds = time.perf_counter() - start
    timings: RunTimings = {
        "wall_seconds": seconds,
        "shards": len(plans) - n_failed,
        "rows": sum(plan.n_rows for plan in plans),
        "started": (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        "command": command,
    }
    output.write(RUN_TIMINGS_FILE, json.dumps(timings))


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


def restored(damage: Damage, output: Store) -> bool:
    """Restore the index of a shard that lacks nothing else; return False if the shard has to be computed again."""
    index = damage.plan.index
    manifest = read_manifest(output, index) if damage.only_index else None
    if manifest is None or not restore_index(output, manifest, damage.formats):
        return False
    logger.warning("the index of shard %d was missing or truncated; restored from the headers of its tars", index)
    return True
