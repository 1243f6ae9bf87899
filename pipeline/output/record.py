"""The records of what made the shards of an output: of the job, `_job.json`, or of a command, `_command.json`."""

import copy
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from hypergrit_common.config import flatten, split_runtime
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import fits
from hypergrit_common.text import counted, one_line
from pipeline.config import PipelineConfig
from pipeline.output.manifest import read_failed
from pipeline.output.store import Store
from pipeline.read.listing import file_name, full_path
from pipeline.read.plan import Batch, CutFile, ShardPlans
from pipeline.read.understood import understood_input, without_rows
from schemas.files import COMMAND_FILE, JOB_FILE
from schemas.job import CommandRecord, InputBatch, InputFile, JobRecord, LeftOut, UnderstoodInput
from schemas.manifest import Provenance
from schemas.rows import VERSION

logger = logging.getLogger("hypergrit")


# The record of a job in its output, `_job.json`, and the plan of the shards that it holds.

DAMAGE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""Exceptions of reading a record with wrong types, or of JSON that is nested too deeply."""


def read_record(store: Store) -> JobRecord | None:
    """Read the record of the job that wrote the shards; None without one. Raises UserError if it is damaged."""
    content = store.read(JOB_FILE)
    if content is None:
        return None
    try:
        record = cast(JobRecord, json.loads(content))
        check_record(record)
    except DAMAGE as error:
        raise UserError(
            f"{store.url(JOB_FILE)} is damaged ({type(error).__name__}: {error}); remove it, and the job will compare "
            "the manifests of the shards instead"
        ) from error
    return record


def check_record(record: JobRecord) -> None:
    """Raise one of DAMAGE if the record lacks a field that this package reads, or one has another type."""
    if not fits(record, JobRecord) or not record.keys() >= {"provenance", "settings"}:
        raise TypeError("a field is missing or has another type")
    recorded_plans(record)
    understood_input(record)
    for file in (file for batch in record["batches"] for file in batch["files"]):
        _ = file["path"], file["hash"], file["size"], file["cuts"][-1][0]


def make_record(
    config: PipelineConfig, provenance: Provenance, batches: Sequence[InputBatch], folders: Sequence[str],
    found: UnderstoodInput | None = None
) -> JobRecord:  # fmt: skip
    """Return the record of a job."""
    record: JobRecord = {
        "schema": VERSION, "settings": settings_of(config), "provenance": provenance, "folders": list(folders),
        "batches": list(batches)
    }  # fmt: skip
    if found is not None:
        record["input"] = found
    return {**record, "secrets": names} if (names := config.download.secrets) else record


def check_secrets(record: JobRecord | None, config: PipelineConfig) -> None:
    """Raise UserError that names every proxy and header of the recorded run about which this one says nothing."""
    download = config.download
    lacking = [name for name in ([] if record is None else record.get("secrets", [])) if name not in download.secrets]
    origins: dict[str, Any] = {name: {} for name in lacking if name != "proxy" and name not in download.headers}
    parts = []
    if "proxy" in lacking and download.proxy is None:
        parts.append(("through a proxy", "give download.proxy=URL again, or download.proxy=none"))
    if origins:
        way = f"give them again in download.headers, or {json.dumps(origins, ensure_ascii=False)} for none"
        parts.append((f"with headers for {', '.join(origins)}", way))
    if parts:
        how, ways = zip(*parts, strict=True)
        raise UserError(f"the output was downloaded {' and '.join(how)}, which is not saved; {'; '.join(ways)}")


def write_record(store: Store, record: JobRecord) -> None:
    """Write `_job.json`, without first rows if rows were taken down. Raises UserError if the output cannot be written."""
    if "input" in record and len(store.read_takedowns()):
        record = {**record, "input": without_rows(record["input"])}
    store.write(JOB_FILE, json.dumps(record, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n")


def settings_of(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings that decide the content of the shards, by full key; input and output are not included."""
    fixed, _ = split_runtime(config)
    flat = flatten(fixed)
    return {key: value for key, value in flat.items() if key not in ("input", "output")}


def recorded_plans(record: JobRecord) -> ShardPlans:
    """Return the plans of all shards of a job."""
    return plans_of(record["batches"], record["settings"]["rows_per_shard"], record.get("folders", []))


def plans_of(batches: Sequence[InputBatch], rows_per_shard: int, folders: Sequence[str]) -> ShardPlans:
    """Return the plans of the shards of `batches`, whose files have their names below `folders`."""
    planned: list[Batch] = []
    appends: tuple[int, ...] = ()
    for batch in batches:
        if any(map(len, planned)) and batch["rows"]:
            appends = (*appends, batch["first_row"])
        files = map(cut_file, batch["files"])
        planned.append(Batch(files, rows_per_shard, batch["first_shard"], batch["first_row"], appends, folders))
    return ShardPlans(planned)


def input_path(store: Store, name: str) -> str:
    """Return the path of an input file that the rows of an output name.

    In the output of a command: its name in the source, which is not opened, since others may have named it. Raises UserError.
    """
    if (record := read_record(store)) is not None:
        return full_path(name, record.get("folders", []))
    sources = made.get("sources", []) if (made := read_command(store)) else []
    number, _, rest = ("0", "", name) if len(sources) == 1 else name.partition("/")
    if "://" in name or not number.isdecimal() or int(number) >= len(sources):
        return name
    return f"{rest} of {sources[int(number)]}"


def located(store: Store, row: Mapping[str, Any]) -> str | None:
    """Return the detail of a row; that of a bad row, which names the file, has its path."""
    name, sign, rest = (row["detail"] or "").partition(", ")
    is_named = sign and row["reason"] == "bad_row" and row["source"].endswith(name)
    return f"{input_path(store, row['source'])}, {rest}" if is_named else row["detail"]


ROOTS: Final = "read.image_roots"


def moved(record: JobRecord, folders: Sequence[str], paths: Collection[str], config: PipelineConfig) -> JobRecord:
    """Return the record with those of its files that have the same names below `folders`, and are in `paths`, there now.

    The folders of images may have moved with them.
    """
    before = record.get("folders", [])

    def place(path: str) -> str:
        now = full_path(file_name(path, before), folders)
        return now if path not in paths and now in paths else path

    found: JobRecord = {**copy.deepcopy(record), "folders": list(folders)}
    if len(config.read.image_roots) == len(found["settings"].get(ROOTS, [])):
        found["settings"][ROOTS] = settings_of(config)[ROOTS]
    for file in (file for batch in found["batches"] for file in batch["files"]):
        file["path"] = place(file["path"])
    for reading in found["input"]["readings"] if "input" in found else ():
        reading["file"] = place(reading["file"])
    return found


def cut_file(file: InputFile) -> CutFile:
    """Convert an input file of the record; its version, a time or ETag, is that by which reading notices a change."""
    version = str(file["mtime_ns"]) if "mtime_ns" in file else file["hash"].removeprefix("etag:")
    return CutFile(file["path"], file["size"], file["cuts"], version)


# The record of a command that made the shards of an output from finished shards, `_command.json`.
#
# It tells which shards belong to the output, and not how to make them: neither the job nor another command resumes from it.


def write_command(
    store: Store, command: str, shards: Sequence[int], sources: Sequence[Store], left_out: Sequence[LeftOut] = ()
) -> None:
    """Write the record. Raises UserError if the output cannot be written."""
    record: CommandRecord = {"schema": VERSION, "command": command, "shards": sorted(shards)}
    record["sources"] = [source.root for source in sources]
    if left_out:
        record["left_out"] = list(left_out)
    store.write(COMMAND_FILE, json.dumps(record, sort_keys=True) + "\n")


def read_command(store: Store) -> CommandRecord | None:
    """Read the record; None for an output of the job. Raises UserError if it is damaged."""
    content = store.read(COMMAND_FILE)
    if content is None:
        return None
    try:
        record = cast(CommandRecord, json.loads(content))
        if not fits(record, CommandRecord):
            raise TypeError("a field has another type")
        _ = record["schema"], record["command"], record["shards"]
        _ = [(left["output"], left["shards"], left["rows"]) for left in record.get("left_out", [])]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"{store.url(COMMAND_FILE)} is damaged ({one_line(error)}); run the command that made the output again, with "
            "the same arguments: it writes the file anew"
        ) from error
    return record


def again(command: str) -> str:
    """Return how to make the shards of an output again: by their command, or "" by the job."""
    if not command:
        return "the job again with the same settings"
    return f"hypergrit {command} again with the same arguments, and overwrite=true if a source has changed since"


def describe_left_out(left: LeftOut) -> str:
    """Return the number of shards and rows that a source lacked, with its name."""
    rows = "" if left["rows"] is None else f" ({counted(left['rows'], 'row')})"
    return f"{counted(len(left['shards']), 'shard')}{rows} of {left['output']}"


# The shards that an output lacks: of a job or command that was stopped, that failed, or that verify has requeued.


class Unfinished(NamedTuple):
    """The shards that an output lacks: index -> number of rows if it is known; the job makes them if `command` is "".

    `left_out` are the shards that its sources lacked when it was made.
    """

    shards: Mapping[int, int | None]
    command: str
    left_out: Sequence[LeftOut]

    @property
    def n_rows(self) -> int | None:
        """The number of rows, None if that of a shard is not known."""
        known = [n for n in self.shards.values() if n is not None]
        return sum(known) if len(known) == len(self.shards) else None


def find_unfinished(store: Store, finished: Collection[int]) -> Unfinished:
    """Return the shards that are not `finished`: those planned by the job or the command, and those that failed.

    Raises UserError if the record of one of them is damaged.
    """
    made, job = read_command(store), read_record(store)
    shards = missing_shards(made, None, finished)
    command = made["command"] if made and (shards or job is None) else ""
    shards |= {failed["shard"]: failed["rows"] for failed in read_failed(store, but=finished)}
    shards |= missing_shards(None, job, finished)
    return Unfinished(dict(sorted(shards.items())), command, lacked_by_sources(made, job))


def missing_shards(
    made: CommandRecord | None, job: JobRecord | None, finished: Collection[int]
) -> dict[int, int | None]:
    """Return the shards that the records of command and job plan and that are not `finished`, with their rows if known.

    Raises UserError if the record of the job is damaged.
    """
    shards: dict[int, int | None] = dict.fromkeys(sorted(set(made["shards"]) - set(finished))) if made else {}
    return shards | ({plan.index: plan.n_rows for plan in recorded_plans(job).without(finished)} if job else {})


def lacked_by_sources(made: CommandRecord | None, job: JobRecord | None) -> list[LeftOut]:
    """Return the unfinished shards of the sources of a command that nothing can make any more.

    A job can make what the source of a rewrite lacked: its plan tells what is missing now.
    """
    return made.get("left_out", []) if made and job is None else []


def check_complete(store: Store, output: str, finished: Collection[int], incomplete: bool) -> list[LeftOut]:
    """Return the shards that `output` and its sources lack, after a warning: no output made from it has their rows.

    Raises UserError if the output itself lacks shards, unless `incomplete`, and always if a command can make them: its
    plan bounds the keys of all rows only when it has finished (pipeline.commands.rewrite_order.key_end).
    """
    missing = find_unfinished(store, finished)
    for left in missing.left_out:
        logger.warning("left out of %s: %s", output, describe_left_out(left))
    if not missing.shards:
        return [*missing.left_out]
    rows = "" if missing.n_rows is None else f" ({counted(missing.n_rows, 'row')})"
    text = (
        f"{output} lacks {len(missing.shards)} of its {counted(len(missing.shards) + len(finished), 'shard')}{rows}, such "
        f"as shard {next(iter(missing.shards))}"
    )
    if missing.command or not incomplete:
        leave = "" if missing.command else ", or give incomplete=true to leave these rows out"
        raise UserError(f"{text}; run {again(missing.command)} to finish it{leave}")
    logger.warning("%s; they are left out", text)
    return [*missing.left_out, {"output": output, "shards": list(missing.shards), "rows": missing.n_rows}]
