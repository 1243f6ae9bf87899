"""Try rows of a finished output again whose download failed for a reason that can pass; their shards are replaced.

A retried shard is that of a job in which these rows succeeded at once: its stages see what they would see in that job.
Kept rows have their stored images. The last digits of the models' results depend on the rows that share a batch, so
that the rows which the models dropped take part too; their images, which are not stored, are fetched again. If one is
not the same any more, its row keeps its result.
"""

import dataclasses
import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from hypergrit_common.cli import EXIT_CODES, INCOMPLETE
from hypergrit_common.config import command_line, flatten, last_value, read_layers, runtime_keys, saved_layers
from hypergrit_common.config_help import describe, help_topic, print_text
from hypergrit_common.errors import UserError
from hypergrit_common.paths import absolute
from hypergrit_common.text import counted
from hypergrit_common.urls import check_no_user
from pipeline.commands.frame import check_keys, keys_of_job, take_options
from pipeline.config import KEYS, PipelineConfig
from pipeline.faults import ShardError, shard_errors
from pipeline.output.commit import finish_replacements, open_output
from pipeline.output.finished import formats_by_hash, formats_of
from pipeline.output.ledger import check_finished, read_batches, read_manifests
from pipeline.output.manifest import read_manifest
from pipeline.output.record import check_secrets, read_record
from pipeline.output.resume import Work, plan_work
from pipeline.output.source import check_formats, check_hashes, read_config, read_table
from pipeline.output.store import Store
from pipeline.output.takedowns import check_recorded
from pipeline.read.listing import list_files
from pipeline.read.source import planned_rows
from pipeline.read.takedown import TAKEN_DOWN, listed, refuse
from pipeline.read.types import ShardPlan, Task
from pipeline.report.cards import DroppedPicture, read_dropped
from pipeline.report.summary import report
from pipeline.run.job import Shards, write_run
from pipeline.run.loop import Run, connected, tasks_of
from pipeline.run.provenance import check_no_query, check_writable, make_provenance, with_absolute_paths
from pipeline.run.steps import Done, Notes, Part, Recipe, Steps
from pipeline.stages.download.permits import PermitAddress
from pipeline.stages.download.stage import drop_duplicates
from schemas.files import JOB_FILE
from schemas.manifest import Manifest, Provenance
from schemas.rows import DOWNLOADED, READ
from schemas.status import LASTING, PASSING, REASONS
from schemas.table import Drop, add_columns, drop_rows, keep_rows, kept_indices, set_column

# The options of retry: which rows are tried again.

STATUS: Final = re.compile(r"[1-9](xx|[0-9][0-9])")
ALLOWED: Final = frozenset(REASONS["download"]) - LASTING


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """The options of `retry=true`."""

    # drop reasons of the download, and statuses of http_error: 429, or 5xx for all from 500 to 599
    reasons: tuple[str, ...] = PASSING

    def __post_init__(self) -> None:
        if not self.reasons or not all(
            isinstance(reason, str) and (reason in ALLOWED or STATUS.fullmatch(reason)) for reason in self.reasons
        ):
            raise UserError(
                f"reasons is {list(self.reasons)}; give HTTP statuses (429, 5xx) and drop reasons of the download: "
                f"{', '.join(sorted(ALLOWED))}"
            )


def may_be_retried(reasons: tuple[str, ...], reason: str) -> bool:
    """Return True if `reasons` may name rows that the download dropped for this reason."""
    return reason in reasons or (reason == "http_error" and any(map(STATUS.fullmatch, reasons)))


# The rows of a finished shard: those to try again, and what the stages saw of the others.

DOWNLOAD_COLUMNS: Final = tuple(name for name in DOWNLOADED.names if name not in READ.names)
TEXT_STAGES: Final = ("captions", "parse")
"""Stages after the download that need no image."""
DROP: Final = ("status", "stage", "reason", "detail")


@dataclass(frozen=True)
class OldShard:
    """A finished shard before it is replaced: its SCORED table with the images of kept rows, and its manifest."""

    table: pa.Table
    manifest: Manifest
    failed: pa.Array  # keys of the rows to try again

    @property
    def places(self) -> dict[str, int]:
        """Key of a row -> its place in the table."""
        return {key: place for place, key in enumerate(self.table["key"].to_pylist())}


def read_old(store: Store, output: str, index: int, reasons: tuple[str, ...]) -> OldShard:
    """Read a finished shard. Raises ShardError if it cannot be read, or is not that of its manifest."""
    manifest = read_manifest(store, index)
    if manifest is None:
        raise ShardError(f"shard {index} of {output} has gone")
    check_hashes(store, manifest)
    with shard_errors():
        table = read_table(store, manifest)
    return OldShard(table, manifest, pa.array(failed_keys([table], reasons), pa.string()))


def failed_keys(parts: Iterable[pa.Table | pa.RecordBatch], reasons: tuple[str, ...]) -> list[str]:
    """Return the keys of the rows to try again."""
    columns = ("key", "reason", "detail")
    dropped = (part.filter(pc.equal(part["stage"], "download")).select(columns) for part in parts)
    rows = (row.values() for part in dropped for row in part.to_pylist())
    return [
        key
        for key, reason, detail in rows
        if reason in reasons or (reason == "http_error" and {detail, f"{(detail or '')[:1]}xx"} & {*reasons})
    ]


def count_rows(output: str, reasons: tuple[str, ...], manifest: Manifest) -> Task:
    """Return the shard with the number of its rows to try again. Raises ShardError if it cannot be read."""
    with shard_errors():
        keys = failed_keys(read_batches(Store(output), manifest, ("key", "stage", "reason", "detail")), reasons)
    return Task(manifest["shard"], len(keys), None)


def as_downloaded(rows: pa.Table, old: OldShard) -> pa.Table:
    """Return rows of the READ table as the download left them, with the images that are stored.

    Rows that a later stage dropped are kept, without an image; so are duplicates, which are looked for again.
    """
    places = old.places
    before = old.table.take(pa.array([places[key] for key in rows["key"].to_pylist()], pa.int64()))
    facts = before.select([*DOWNLOAD_COLUMNS, "stage", "reason", "detail"]).to_pylist()
    kept = set(kept_indices(rows))
    table = add_columns(rows, DOWNLOADED, {i: {n: facts[i][n] for n in DOWNLOAD_COLUMNS} for i in kept})
    table = set_column(table, "image", before["image"])
    for stage in ("read", "download"):
        lost = {i: facts[i] for i in kept if facts[i]["stage"] == stage and facts[i]["reason"] != "duplicate"}
        drops = {i: Drop(row["reason"], row["detail"] or "") for i, row in lost.items() if row["reason"] != TAKEN_DOWN}
        table = drop_rows(table, stage, drops)
    gone = [facts[i]["detail"] if i in kept and facts[i]["reason"] == TAKEN_DOWN else None for i in range(len(facts))]
    return refuse(table, gone) if any(gone) else table


def decide_duplicates(table: pa.Table, old: OldShard) -> pa.Table:
    """Drop the duplicates of a DOWNLOADED table as the job does within a shard, whatever was a duplicate before.

    A duplicate of a row that has gone stays one.
    """
    table = drop_duplicates(keep_rows(table, pc.equal(pc.fill_null(table["reason"], ""), "duplicate")))
    before, details = old.table["reason"].to_pylist(), old.table["detail"].to_pylist()
    alone = [i for i in kept_indices(table) if before[i] == "duplicate"]
    return drop_rows(table, "download", {i: Drop("duplicate", details[i]) for i in alone})


# The steps of the job for the shards of which rows are tried again.


class RetrySteps(Steps):
    """The steps of a process that replaces finished shards, in which some rows are tried again.

    The stages after the download see only the rows that they have to see again; `write` adds the others as they were.
    Raises ShardError, besides the exceptions of `Steps`, if the finished shard cannot be read.
    """

    replaces = True

    def __init__(
        self,
        config: PipelineConfig,
        provenance: Provenance,
        reasons: tuple[str, ...],
        permits: PermitAddress | None = None,
        lease: str | None = None,
    ) -> None:
        super().__init__(config, provenance, permits, lease)
        self.reasons = reasons
        self._old: tuple[int, OldShard] | None = None

    def old(self, plan: ShardPlan) -> OldShard:
        """Return the finished shard; that of the last plan is kept."""
        if self._old is None or self._old[0] != plan.index:
            self._old = plan.index, read_old(self.store, self.config.output, plan.index, self.reasons)
        return self._old[1]

    def read(self, plan: ShardPlan, rows: pa.Table | None = None) -> Iterator[Part]:
        """Yield the rows to try again, read from the input: arrow/ may lack the queries of URLs."""
        rows = planned_rows(plan) if rows is None else rows
        yield from super().read(plan, rows.filter(pc.is_in(rows["key"], self.old(plan).failed)))

    def download(self, plan: ShardPlan, parts: Iterable[Part]) -> Part:
        """Download the images of the rows to try again; return them, as a job would, with others that stages have to see."""
        tried, notes = super().download(plan, parts)
        old, rows = self.old(plan), planned_rows(plan)
        others = rows.filter(pc.invert(pc.is_in(rows["key"], tried["key"])))
        read = super().read(plan, others)  # with images of the input, which would take memory
        found = [(set_column(part, "image", pa.nulls(part.num_rows, pa.binary())), more) for part, more in read]
        table = pa.concat_tables([tried, as_downloaded(pa.concat_tables([part for part, _ in found]), old)])
        table = decide_duplicates(table.take(pc.index_in(rows["key"], table["key"].combine_chunks())), old)
        notes = sum((more for _, more in found), notes)
        kept = kept_indices(table)
        is_recovered = bool(
            set(old.failed.to_pylist()) & set(table["key"].take(pa.array(kept, pa.int64())).to_pylist())
        )
        if not is_recovered:
            return without_rows(table, kept), notes
        lacking = self.without_image(plan, table, kept)
        if not lacking:
            return table, notes
        keys = table["key"].take(pa.array(lacking, pa.int64()))
        again, more = super().download(
            plan, super().read(plan, rows.filter(pc.is_in(rows["key"], keys.combine_chunks())))
        )
        table = add_fetched(table, again)
        images, stages = table["image"], old.table["stage"].to_pylist()
        lost = [i for i in lacking if not images[i].is_valid and stages[i] not in TEXT_STAGES]
        return without_rows(table, lost), notes + more

    def without_image(self, plan: ShardPlan, table: pa.Table, kept: Sequence[int]) -> list[int]:
        """Return the rows of a DOWNLOADED table whose image is needed, and not stored: for a model, or as a thumbnail."""
        stages, keys, images = self.old(plan).table["stage"].to_pylist(), table["key"].to_pylist(), table["image"]
        shown = read_dropped(self.store, plan.index, keys)
        return [i for i in kept if not images[i].is_valid and (stages[i] not in TEXT_STAGES or keys[i] in shown)]

    def write(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> Done:
        """Add the rows that no stage saw, and replace the shard, unless it is as it was."""
        old = self.old(plan)
        is_recovered = any(stage not in ("read", "download") for stage in table["stage"].to_pylist())
        keys = old.table["key"].to_pylist()
        places = dict(zip(table["key"].to_pylist(), range(len(keys), len(keys) + table.num_rows), strict=True))
        chosen = pa.array([places.get(key, i) for i, key in enumerate(keys)], pa.int64())
        table = pa.concat_tables([old.table, table.select(old.table.schema.names)]).take(chosen)
        if not is_recovered:
            if all(table[name].equals(old.table[name]) for name in DROP):
                return Done(old.manifest, notes.faults)
            shown = read_dropped(self.store, plan.index, table["key"].to_pylist())
            notes = dataclasses.replace(notes, dropped=tuple(DroppedPicture(key, "", "", shown[key]) for key in shown))
        return super().write(plan, table, notes)


def without_rows(table: pa.Table, rows: Iterable[int]) -> pa.Table:
    """Return a table without the rows at these places."""
    return table.take(pa.array(sorted({*range(table.num_rows)}.difference(rows)), pa.int64()))


def add_fetched(table: pa.Table, fetched: pa.Table) -> pa.Table:
    """Return a DOWNLOADED table with images that were fetched again and are still the same."""
    pairs = zip(*(fetched[name].to_pylist() for name in ("key", "sha256", "image")), strict=True)
    images = {(key, digest): image for key, digest, image in pairs if image is not None}
    rows = zip(*(table[name].to_pylist() for name in ("key", "sha256", "image")), strict=True)
    column = [images.get((key, digest)) if image is None else image for key, digest, image in rows]
    return set_column(table, "image", pa.array(column, pa.binary()))


# Find the shards of a finished output with rows to try again, and replace them.

logger = logging.getLogger("hypergrit")

TAKEN: Final = runtime_keys(PipelineConfig) - {"overwrite", "dry_run"} | {"input", "read.image_roots"}
"""Settings that may differ from the job's: they do not decide the content, or name the same files in another folder."""


def retry(arguments: Sequence[str]) -> int:
    """Try rows of an output again; return the number of shards that failed, which stay as they are. Raises UserError."""
    output, options, changes = take_arguments(arguments)
    store = Store(output)
    config = with_absolute_paths(read_config(store, [*changes, f"output={output}"], loads=True))
    before, after = (flatten(dataclasses.asdict(settings)) for settings in (read_config(store), config))
    same = {key for key, value in after.items() if key in before and before[key] == value}
    check_keys(changes, (*TAKEN, "output"), "retry", same)
    config.download.check_use()
    check_writable(store)
    entries = listed(config.read.takedown).without_queries(config.write.strip_url_queries)
    start = time.perf_counter()
    with open_output(store) as lease:
        work, provenance = plan_job(store, config)
        check_secrets(work.old_record, config)
        check_recorded(store, entries, config.read.takedown)
        manifests = finished_shards(store, work)
        chosen = [
            manifest for manifest in manifests
            if any(may_be_retried(options.reasons, reason) for reason in manifest["counts"]["dropped"].get("download", ()))
        ]  # fmt: skip
        with connected(config.ray):
            search, count = Run(config, lease), partial(count_rows, config.output, options.reasons)
            results = search.results(Recipe.calling(count, "rows to try again"), tasks_of(chosen))
            tried = {task.index: task for task in results if task.n_rows}
            n_rows = sum(task.n_rows for task in tried.values())
            logger.info("trying %s of %s again", counted(n_rows, "row"), counted(len(tried), "shard"))
            lease.check()
            written = formats_by_hash(config)
            formats = {manifest["shard"]: formats_of(manifest, written) for manifest in manifests}
            run = Run(config, lease, limited=[*tried.values()])
            shards = Shards(run, provenance, formats, partial(RetrySteps, reasons=options.reasons))
            shards.finish(plan for plan in work.plans if plan.index in tried)
        lease.check()
        finish_replacements(store, lease)  # of workers that failed or died
        store.remove_drafts()
        if tried:
            write_run(store, start, [*tried.values()], len(run.failed), command_line("hypergrit run", arguments, KEYS))
        report(config, store, [plan.index for plan in work.plans])
    return len(search.failed | run.failed)


def take_arguments(arguments: Sequence[str]) -> tuple[str, RetryOptions, list[str]]:
    """Return the absolute output, the options of retry, and the settings and YAML files. Raises UserError."""
    files = [item for item in arguments if "=" not in item]
    outputs = [item.partition("=")[2] for item in arguments if item.startswith("output=")]
    outputs = outputs or [str(last_value(saved_layers(read_layers(files, KEYS), files)[1], "output") or "")]
    if len(outputs) != 1 or not outputs[0]:
        raise UserError(f"{len(outputs)} outputs are given; give one: hypergrit run retry=true output=OUT")
    check_no_user("output", outputs[0])
    rest = [item for item in arguments if "=" in item and not item.startswith(("output=", "retry="))]
    options, changes = take_options(rest, RetryOptions)
    return absolute(outputs[0]), options, [*files, *changes]


def plan_job(store: Store, config: PipelineConfig) -> tuple[Work, Provenance]:
    """Return the shards of the job that wrote an output, and its provenance.

    Raises UserError if the job could not be resumed: other versions, models or input, or an output that the job did not
    write.
    """
    if read_record(store) is None:
        raise UserError(
            f"{store.url(JOB_FILE)} does not exist; retry needs an output of the job, or of a rewrite that keeps its "
            "shards: retry the source of this output, and make it again"
        )
    files = list_files(config.input)
    check_no_query(config, [path for path, _ in files])
    provenance = make_provenance(config)
    try:
        return plan_work(config, files, provenance, store), provenance
    except UserError as error:
        raise UserError(f"retry needs an output with which the job can be resumed: {error}") from error


def finished_shards(store: Store, work: Work) -> list[Manifest]:
    """Return the manifests of the finished shards. Raises UserError if there is none, or one lacks arrow/ or images."""
    unfinished = {plan.index for plan in work.unfinished}
    planned = {plan.index for plan in work.plans} - unfinished
    manifests = [manifest for manifest in read_manifests(store) if manifest["shard"] in planned]
    check_finished(store, manifests)
    for manifest in manifests:
        check_formats(store, manifest)
    if unfinished:
        logger.warning("%s unfinished, and left to the job", counted(len(unfinished), "shard"))
    return manifests


USAGE: Final = f"""\
usage: hypergrit run retry=true output=OUT [reasons=[...]] [secrets.yaml] [key=value ...]

Tries rows again that a finished job dropped for a reason that can pass, and replaces their shards. A replaced shard is
that of a job in which these rows succeeded at once. Give the arguments of the job again: the output may be a stranger's, so
that what its config.yaml names outside of it (input, models, hosts) is not followed by itself, and settings marked [runtime]
are not taken from it. The input files must still be there. No kept row is downloaded again; in shards with rows that
succeed, those that the models dropped are. After a kill, run the same command again.

  hypergrit run retry=true jobs/pipeline/coyo.yaml input=pairs.parquet output=out/mine
  hypergrit run retry=true output=out/mine input=pairs.parquet "reasons=[timeout,429,5xx]" download.timeout_s=60

  output               output folder or URL of a job; it needs arrow/ and the images, in grit/ or arrow/
  download.*, ray.*, report.* and other settings marked [runtime]: as in the job, for this command only
                       (hypergrit run --help explains them)

{EXIT_CODES}
3 done, but some shards failed, and are as before: the log has their errors, and the same command tries them again.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command, or print its help; return the exit code. Raises UserError."""
    if (topic := help_topic(arguments)) is not None:
        print_text(describe(USAGE, RetryOptions, KEYS.short, topic=topic, more=keys_of_job(tuple(TAKEN))))
        return 0
    return INCOMPLETE if retry(arguments) else 0
