"""Decide what a run has to do: compare the job with its record, and find the shards that remain."""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import permutations
from queue import SimpleQueue
from typing import IO, Any, Final, NamedTuple, cast

import numpy as np
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.config import split_runtime
from hypergrit_common.errors import UserError
from hypergrit_common.files import is_broken_link
from hypergrit_common.remote import map_concurrently, open_store, store_errors
from hypergrit_common.remote import one_line as one_remote_line
from hypergrit_common.text import counted, one_line
from pipeline.config import PipelineConfig, content_hash, with_formats
from pipeline.faults import Child, ProcessDiedError, RemoteError, StepTimeoutError
from pipeline.output.listing import Listing, list_output
from pipeline.output.manifest import is_same, plan_json, read_failed, read_manifest
from pipeline.output.store import Store, indices, settle_layout
from pipeline.read.config import ReadConfig
from pipeline.read.listing import format_of
from pipeline.read.plan import Batch, CutFile, Known, ShardPlans, cut_files
from pipeline.read.roots import object_version
from pipeline.read.samples import Scan, list_folder, scan_tar, scan_tars
from pipeline.read.types import ShardPlan
from schemas.files import COMMAND_FILE, FILES, INDEX_FILE, JOB_FILE, MANIFEST_FILE, REPORT_FILE, STATS_FILE, TARS
from schemas.job import CommandRecord, InputBatch, InputFile, JobRecord, LeftOut
from schemas.layout import MAX_SHARDS
from schemas.manifest import Manifest, Provenance
from schemas.rows import VERSION

# The record of a command that made the shards of an output from finished shards, `_command.json`.
#
# It tells which shards belong to the output, and not how to make them: neither the job nor another command resumes from it.


def write_command(store: Store, command: str, shards: Sequence[int], left_out: Sequence[LeftOut] = ()) -> None:
    """Write the record. Raises UserError if the output cannot be written."""
    record: CommandRecord = {"schema": VERSION, "command": command, "shards": sorted(shards)}
    if left_out:
        record["left_out"] = list(left_out)
    store.write(COMMAND_FILE, json.dumps(record, sort_keys=True) + "\n")


def read_command(store: Store) -> CommandRecord | None:
    """Read the record; None for an output of the job. Raises UserError if it is damaged."""
    content = store.read(COMMAND_FILE)
    if content is None:
        return None
    try:
        value = json.loads(content)
        record: CommandRecord = {
            "schema": str(value["schema"]),
            "command": str(value["command"]),
            "shards": [int(index) for index in value["shards"]],
        }
        if "left_out" in value:
            record["left_out"] = [
                {
                    "output": str(left["output"]),
                    "shards": [int(index) for index in left["shards"]],
                    "rows": None if left["rows"] is None else int(left["rows"]),
                }
                for left in value["left_out"]
            ]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"{store.url(COMMAND_FILE)} is damaged ({one_line(error)}); run the command that made the output again, with "
            "the same arguments: it writes the file anew"
        ) from error
    return record


def again(command: str) -> str:
    """Return how to make the shards of an output again: by their command, or "" by the job."""
    return f"hypergrit {command} again with the same arguments" if command else "the job again with the same settings"


def describe_left_out(left: LeftOut) -> str:
    """Return the number of shards and rows that a source lacked, with its name."""
    rows = "" if left["rows"] is None else f" ({counted(left['rows'], 'row')})"
    return f"{counted(len(left['shards']), 'shard')}{rows} of {left['output']}"


# Name the differences between a job and the one that wrote the shards of its output.

MISSING: Final = "none"
SHOWN: Final = 12
"""Maximum number of differences in a message."""
PLAN_SETTINGS: Final = ("limit", "rows_per_shard")
"""Settings that decide which rows a shard holds. Shards that hold the same rows are kept when they change."""
FORMATS: Final = "write.formats"
"""Setting that decides which files a shard has; a shard that has more is kept."""


def setting_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Describe the settings that differ, by key; those of the formats are found per shard."""
    return {
        key: f"{key}: {show(old, key)} -> {show(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if key != FORMATS and show(old, key) != show(new, key)
    }


THRESHOLD: Final = "threshold "


def provenance_differences(old: Provenance, new: Provenance) -> Iterator[str]:
    """Describe versions, models and thresholds that differ."""
    for name, label in (("hypergrit", "HyperGRIT"), ("schema", "schemas")):
        if old.get(name) != new.get(name):
            yield f"{label}: {show(old, name)} -> {show(new, name)}"
    for group, label in (("packages", "package "), ("thresholds", THRESHOLD)):
        before, after = _mapping(old.get(group)), _mapping(new.get(group))
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                yield f"{label}{name}: {show(before, name)} -> {show(after, name)}"
    for role, model in _mapping(new.get("models")).items():
        before = _mapping(_mapping(old.get("models")).get(role))
        if before != model:
            yield f"{role}: {describe_model(before)} -> {describe_model(model)}"
    before, after = ({plugin["name"]: plugin for plugin in one.get("plugins", ())} for one in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"code: {describe_model(before.get(name, {}))} -> {describe_model(after.get(name, {}))}"


def describe_model(model: Mapping[str, Any]) -> str:
    """Describe a model with the beginning of its hash, or with its version."""
    identity = f"sha256 {str(model['sha256'])[:12]}" if "sha256" in model else model.get("version")
    return f"{model.get('name', MISSING)}" + (f" ({identity})" if identity else "")


def show(values: Mapping[str, Any], key: str) -> str:
    """Format a value for a message; values of JSON and of Python look the same."""
    value = values.get(key)
    return MISSING if value is None else str(list(value) if isinstance(value, tuple) else value)


def join(differences: Iterable[str]) -> str:
    """Join differences to one line; the rest is counted."""
    listed = list(differences)
    more = f"; and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return "; ".join(listed[:SHOWN]) + more


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# Find the finished shards of an output, and those that are damaged.

Formats = tuple[str, ...]


def list_finished(listing: Listing, plans: ShardPlans, formats: Collection[str]) -> set[int]:
    """Return the indices of the `plans` that have a manifest and their files of `formats`."""
    return listing.complete(formats) & set(plans.indices().tolist())


class Damage(NamedTuple):
    """A finished shard of which a file is missing or has another size, or whose manifest is damaged."""

    plan: ShardPlan
    formats: Formats  # in which it was written, in this order; it is computed again with all of them
    only_index: bool = False  # the other files are intact


def find_finished(
    store: Store,
    listing: Listing,
    plans: Sequence[ShardPlan],
    config: PipelineConfig,
    provenances: Sequence[Provenance],
) -> tuple[set[int], list[Damage]]:
    """Return the indices of the `plans` that are committed as planned with the formats of `config`, and the damages.

    The manifests are read, and the sizes of the files compared with them. A shard without its index alone is finished
    and damaged.
    """
    written = formats_by_hash(config)
    committed = set(listing.committed())
    candidates = [plan for plan in plans if plan.index in committed]
    manifests = map_concurrently(lambda plan: read_manifest(store, plan.index), candidates)
    finished, damages = set[int](), list[Damage]()
    for plan, manifest in zip(candidates, manifests, strict=True):
        if manifest is None or not is_same(manifest, plan, provenances):
            continue
        if not set(config.write.formats) <= set(manifest["formats"]):
            continue
        damage = find_damage(store, listing, plan, manifest, config, written)
        if damage is not None:
            damages.append(damage)
        if damage is None or damage.only_index:
            finished.add(plan.index)
    return finished, damages


def find_missing(store: Store, plans: Sequence[ShardPlan]) -> list[ShardPlan]:
    """Return the `plans` without a manifest, now if not in the listing: one request per 1,000 manifests."""
    committed = set(indices(store, MANIFEST_FILE))
    unlisted = [plan for plan in plans if plan.index not in committed]
    return [plan for plan in unlisted if store.size(store.file(MANIFEST_FILE, plan.index)) is None]


def find_damaged(
    store: Store, plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance
) -> list[Damage]:
    """Return the finished shards of `plans` of which a file of the formats of `config`, or the manifest, is damaged.

    A shard with another plan, or of a job with other settings, which a late worker of that job may have committed, is
    damaged too.
    """
    accepted = equal_provenances(config, provenance)
    written = formats_by_hash(config)
    listing = list_output(store)
    committed = set(listing.committed())
    finished = [plan for plan in plans if plan.index in committed]
    manifests = map_concurrently(lambda plan: read_manifest(store, plan.index), finished)
    damages = (
        Damage(plan, config.write.formats)
        if manifest is None or not is_same(manifest, plan, accepted)
        else find_damage(store, listing, plan, manifest, config, written)
        for plan, manifest in zip(finished, manifests, strict=True)
    )
    return [damage for damage in damages if damage is not None]


def find_damage(
    store: Store,
    listing: Listing,
    plan: ShardPlan,
    manifest: Manifest,
    config: PipelineConfig,
    written: Mapping[str, Formats],
) -> Damage | None:
    """Compare the files of a shard, its index and those of the formats of `config`, with its manifest."""
    index = store.file(INDEX_FILE, plan.index)
    names = {store.file(kind, plan.index) for name in config.write.formats for kind in FILES[name]}
    names |= {index} if set(manifest["formats"]) & TARS.keys() else set()
    damaged = {name for name in names if not has_file(store, listing, name, manifest)}
    if not damaged:
        return None
    formats = formats_of(manifest, written)
    return Damage(plan, formats, damaged == {index} & manifest["files"].keys())


def has_file(store: Store, listing: Listing, name: str, manifest: Manifest) -> bool:
    """Return True if a file has the size that the manifest names, now if not in the listing: a shard costs hours."""
    facts = manifest["files"].get(name)
    return facts is not None and (listing.size(name) == facts["bytes"] or store.size(name) == facts["bytes"])


def formats_of(manifest: Manifest, written: Mapping[str, Formats]) -> Formats:
    """Return the formats of a shard in the order in which they were written; `written` is `formats_by_hash`."""
    return written.get(str(manifest["provenance"].get("config_hash")), tuple(manifest["formats"]))


def formats_by_hash(config: PipelineConfig) -> dict[str, Formats]:
    """Return the `content_hash` of `config` and of those that differ only by the formats -> formats, in their order."""
    orders = (formats for n in range(1, len(FILES) + 1) for formats in permutations(FILES, n))
    others = {content_hash(with_formats(config, formats)): formats for formats in orders}
    return {content_hash(config): config.write.formats} | others


def equal_provenances(config: PipelineConfig, provenance: Provenance) -> list[Provenance]:
    """Return `provenance`, and those that differ from it only by the formats that were written."""
    hashes = dict.fromkeys([provenance["config_hash"], *formats_by_hash(config)])
    return [{**provenance, "config_hash": value} for value in hashes]


# The identity of input files, by content.

logger = logging.getLogger("hypergrit")

WHOLE_BYTES: Final = 10**9
"""Local files up to this size are hashed completely, larger ones by sampled blocks."""
BLOCK_BYTES: Final = 1 << 20
N_BLOCKS: Final = 64
WHOLE_TAR_BYTES: Final = 1 << 24
"""The same for tars, whose images are too many bytes to read before the job: 22 TB for 7.5e8 samples."""
TAR_BLOCK_BYTES: Final = 1 << 16
N_TAR_BLOCKS: Final = 16


def identify_files(files: Iterable[tuple[str, int]], known: Mapping[str, InputFile]) -> list[InputFile]:
    """Return the identity of each of `files`, pairs (path, size), with `cuts` left empty.

    Files of `known` are not hashed again if their size, times of change and inode, or their ETag are the same.
    Raises UserError for a file that cannot be read.
    """
    return list(map_concurrently(partial(_identify, known=known), [path for path, _ in files]))


def _identify(path: str, known: Mapping[str, InputFile]) -> InputFile:
    try:
        if format_of(path) == "folder":
            listing = list_folder(path)
            return {"path": path, "size": listing.size, "hash": listing.version, "cuts": []}
        fs, name = open_store(path)
        if isinstance(fs, LocalFileSystem):
            return _identify_local(name, known.get(path))
        return _identify_object(fs, path, name, known.get(path))
    except store_errors(ValueError) as error:
        raise UserError(
            f"cannot read input file {path}: {one_remote_line(error)}; replace the file, or remove it from the input"
        ) from error


def _identify_local(path: str, known: InputFile | None) -> InputFile:
    if is_broken_link(path):  # a damaged file, which read.skip_damaged leaves out
        return {"path": path, "size": 0, "hash": f"link:{os.readlink(path)}", "cuts": []}
    facts = os.stat(path)
    found: InputFile = {
        "path": path,
        "size": facts.st_size,
        "hash": "",
        "mtime_ns": facts.st_mtime_ns,
        "ctime_ns": facts.st_ctime_ns,
        "inode": facts.st_ino,
        "cuts": [],
    }
    if known and all(known.get(name) == found.get(name) for name in ("size", "mtime_ns", "ctime_ns", "inode")):
        found["hash"] = known["hash"]
        return found | ({"footer": known["footer"]} if "footer" in known else {})
    with open(path, "rb") as file:
        method = known["hash"].partition(":")[0] if known and known["size"] == facts.st_size else ""
        if method not in HASHES:
            method = method_for(path, facts.st_size)
        found["hash"] = f"{method}:{HASHES[method](file, facts.st_size)}"
        if method == "blocks" and format_of(path) == "parquet":
            found["footer"] = hash_footer(file, facts.st_size)
    return found


def method_for(path: str, size: int) -> str:
    """Return the way to hash a local file of which no hash is known: a key of HASHES."""
    if format_of(path) == "tar":
        return "sha256" if size <= WHOLE_TAR_BYTES else "samples"
    return "sha256" if size <= WHOLE_BYTES else "blocks"


def _identify_object(fs: AbstractFileSystem, path: str, name: str, known: InputFile | None) -> InputFile:
    info = fs.info(name)
    version = object_version(info)
    if not version:
        logger.warning(
            "%s: its server names neither an ETag nor a date, so that only changes of size are noticed", path
        )
    found: InputFile = {"path": path, "size": int(info["size"] or 0), "hash": f"etag:{version}", "cuts": []}
    if format_of(path) == "parquet":
        if known and (known["size"], known["hash"]) == (found["size"], found["hash"]) and "footer" in known:
            found["footer"] = known["footer"]
        else:
            with fs.open(name, "rb", block_size=BLOCK_BYTES) as file:
                found["footer"] = hash_footer(file, found["size"])
    return found


def hash_whole(file: IO[bytes], size: int) -> str:
    """Hash a file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def hash_blocks(file: IO[bytes], size: int) -> str:
    """Hash `N_BLOCKS` blocks of `BLOCK_BYTES`."""
    return hash_parts(file, size, N_BLOCKS, BLOCK_BYTES)


def hash_samples(file: IO[bytes], size: int) -> str:
    """Hash `N_TAR_BLOCKS` blocks of `TAR_BLOCK_BYTES`."""
    return hash_parts(file, size, N_TAR_BLOCKS, TAR_BLOCK_BYTES)


def hash_parts(file: IO[bytes], size: int, n_blocks: int, n_bytes: int) -> str:
    """Hash blocks at equal distances; the first block and the last are at the ends of the file."""
    digest = hashlib.sha256()
    for i in range(n_blocks):
        file.seek(max(0, size - n_bytes) * i // (n_blocks - 1))
        digest.update(file.read(n_bytes))
    return digest.hexdigest()


HASHES: Final[Mapping[str, Callable[[IO[bytes], int], str]]] = {
    "sha256": hash_whole,
    "blocks": hash_blocks,
    "samples": hash_samples,
}
"""Prefix of a recorded hash -> its function of a file and its size."""


def hash_footer(file: IO[bytes], size: int) -> str:
    """Hash the footer of a parquet file, which has the sizes, positions and statistics of its columns."""
    file.seek(max(0, size - 8))
    tail = file.read(8)
    start = max(0, size - 8 - int.from_bytes(tail[:4], "little"))
    file.seek(start)
    return hashlib.sha256(file.read(size - start)).hexdigest()


def version_of(file: InputFile) -> str:
    """Return the version by which reading notices a change: the time of modification or the ETag."""
    return str(file["mtime_ns"]) if "mtime_ns" in file else file["hash"].removeprefix("etag:")


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
    recorded_plans(record)
    texts = [file[name] for batch in record["batches"] for file in batch["files"] for name in ("path", "hash")]
    numbers = [file["size"] + file["cuts"][-1][0] for batch in record["batches"] for file in batch["files"]]
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in numbers):
        raise TypeError("an input file has a field of another type")
    if not isinstance(record["provenance"], dict):
        raise TypeError("provenance is no object")


def make_record(config: PipelineConfig, provenance: Provenance, batches: Sequence[InputBatch]) -> JobRecord:
    """Return the record of a job."""
    record: JobRecord = {
        "schema": VERSION, "settings": settings_of(config), "provenance": provenance, "batches": list(batches)
    }  # fmt: skip
    return {**record, "secrets": found} if (found := config.download.secrets) else record


def check_secrets(record: JobRecord | None, config: PipelineConfig) -> None:
    """Raise UserError if the recorded run had a proxy or headers about which this one says nothing."""
    download = config.download
    lacking = [name for name in ([] if record is None else record.get("secrets", [])) if name not in download.secrets]
    if "proxy" in lacking and download.proxy is None:
        raise UserError("the output was downloaded through a proxy, which is not saved; give download.proxy=URL again, or "
                        "download.proxy=none")  # fmt: skip
    if origin := next((name for name in lacking if name != "proxy" and name not in download.headers), ""):
        raise UserError(f"the output was downloaded with headers for {origin}, which are not saved; give them again in "
                        f"download.headers, or {{{json.dumps(origin)}: {{}}}} for none")  # fmt: skip


def write_record(store: Store, record: JobRecord) -> None:
    """Write `_job.json`. Raises UserError if the output cannot be written."""
    store.write(JOB_FILE, json.dumps(record, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n")


def settings_of(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings that decide the content of the shards, by full key; input and output are not included."""
    fixed, _ = split_runtime(config)
    flat = flatten(fixed)
    return {key: value for key, value in flat.items() if key not in ("input", "output")}


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by full key, as JSON gives them back."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return cast(dict[str, Any], json.loads(json.dumps(flat)))


def recorded_plans(record: JobRecord) -> ShardPlans:
    """Return the plans of all shards of a job."""
    return plans_of(record["batches"], record["settings"]["rows_per_shard"])


def plans_of(batches: Sequence[InputBatch], rows_per_shard: int) -> ShardPlans:
    """Return the plans of the shards of `batches`."""
    planned: list[Batch] = []
    appends: tuple[int, ...] = ()
    for batch in batches:
        if any(map(len, planned)) and batch["rows"]:
            appends = (*appends, batch["first_row"])
        files = map(cut_file, batch["files"])
        planned.append(Batch(files, rows_per_shard, batch["first_shard"], batch["first_row"], appends))
    return ShardPlans(planned)


def cut_file(file: InputFile) -> CutFile:
    """Convert an input file of the record to the form in which it is planned."""
    return CutFile(file["path"], file["size"], file["cuts"], version_of(file))


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

    A job can make what a source of refilter lacked: its plan tells what is missing now.
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


# Scan tars in child processes, one per core.

FEW: Final = 8
"""Tars up to which the start of processes takes longer than it saves."""
TIMEOUT_S: Final = 24 * 3600.0
"""Longest time for a tar."""


class TarScanner:
    """Scans tars one at a time; the object of a child process."""

    def __init__(self, config: ReadConfig, limit: int | None) -> None:
        self.config, self.limit = config, limit

    def scan(self, path: str, size: int) -> Scan:
        """Find the samples of a tar."""
        return scan_tar(path, size, self.config, self.limit)


def scan_in_processes(
    files: Sequence[tuple[str, int]], config: ReadConfig, limit: int | None
) -> Generator[Scan, None, None]:
    """Scan tars, a few of them in this process and more in one process per core: a `pipeline.read.samples.Scanner`."""
    n_processes = min(len(os.sched_getaffinity(0)), len(files))
    if len(files) <= FEW or n_processes == 1:
        yield from scan_tars(files, config, limit)
        return
    idle = SimpleQueue[Child]()
    with ExitStack() as stack:
        for _ in range(n_processes):
            idle.put(stack.enter_context(Child(partial(TarScanner, config, limit))))
        pool = ThreadPoolExecutor(n_processes)
        # Before the processes are killed, so that no thread starts another one.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield from pool.map(partial(scan_in, idle), files)


def scan_in(idle: "SimpleQueue[Child]", file: tuple[str, int]) -> Scan:
    """Scan a tar in the next idle process. Raises UserError."""
    child = idle.get()
    try:
        found: Scan = child.call("scan", *file, timeout_s=TIMEOUT_S)
        return found
    except (ProcessDiedError, StepTimeoutError, RemoteError) as error:
        raise UserError(
            f"cannot scan input file {file[0]}: {error}; replace the file, or remove it from the input"
        ) from error
    finally:
        idle.put(child)


# The input of a job over its runs: batches of files, each of which begins a new shard.

Files = Sequence[tuple[str, int]]
"""Input files as pairs (path, size in bytes)."""


class History(NamedTuple):
    """The batches of the present input, and what changed in files of the record: path -> description."""

    batches: list[InputBatch]
    changes: Mapping[str, str]
    n_appended: int


def plan_history(files: Files, record: JobRecord | None, config: PipelineConfig) -> History:
    """Plan the present input: the files of the record in its order, then the new ones as a batch of their own.

    A change of `limit` or `rows_per_shard` begins a new history. Raises UserError if the input holds no rows, or a file
    cannot be read.
    """
    if record is None:
        return History(check_rows(plan_batches([files], {}, {}, config), config), {}, 0)
    sizes = dict(files)
    recorded = {file["path"]: file for batch in record["batches"] for file in batch["files"]}
    present = {file["path"]: file for file in identify_files([item for item in files if item[0] in recorded], recorded)}
    changes = describe_changes(recorded, present, files)
    if any(record["settings"].get(key) != getattr(config, key) for key in ("limit", "rows_per_shard")):
        return History(check_rows(plan_batches([files], present, {}, config), config), changes, 0)
    old = [[(file["path"], sizes[file["path"]]) for file in batch["files"] if file["path"] in sizes]
           for batch in record["batches"]]  # fmt: skip
    new = [item for item in files if item[0] not in recorded]
    known = {} if changes and config.limit is not None else known_cuts(record, changes)
    batches = check_rows(plan_batches([*old, new], present, known, config), config)
    n_appended = sum(file["path"] not in recorded for batch in batches for file in batch["files"])
    return History(batches, changes, n_appended if any(old) else 0)


def check_rows(batches: list[InputBatch], config: PipelineConfig) -> list[InputBatch]:
    """Return `batches`. Raises UserError if they have no rows."""
    if not any(batch["rows"] for batch in batches):
        raise UserError(f"input {config.input!r} holds no rows; give files with at least one row")
    return batches


def plan_batches(
    groups: Sequence[Files],
    identified: Mapping[str, InputFile],
    known: Known,
    config: PipelineConfig,
) -> list[InputBatch]:
    """Divide groups of files into shards; each group begins a new shard.

    Groups without rows are left out, unless a file is damaged, which the record must tell.
    `identified` holds files whose identity is known already; `known` as in `cut_files`.
    """
    batches: list[InputBatch] = []
    n_shards = n_rows = 0
    for files in groups:
        limit = None if config.limit is None else config.limit - n_rows
        cut = (
            cut_files(files, config.rows_per_shard, limit, config.read, known, scan_in_processes) if limit != 0 else []
        )
        new = identify_files([(file.path, file.size) for file in cut if file.path not in identified], {})
        by_path = {**identified, **{file["path"]: file for file in new}}
        rows = sum(file.n_rows for file in cut)
        if not rows and not any(file.damage for file in cut):
            continue
        shards = -(-rows // config.rows_per_shard)
        for file in cut:
            if by_path[file.path]["size"] != file.size:
                raise UserError(f"input file {file.path} has changed while it was planned; run the same command again")
        batches.append(
            {
                "first_shard": n_shards,
                "first_row": n_rows,
                "shards": shards,
                "rows": rows,
                "files": [with_cuts(by_path[file.path], file) for file in cut],
            }
        )
        n_shards, n_rows = n_shards + shards, n_rows + rows
    return batches


def with_cuts(identity: InputFile, file: CutFile) -> InputFile:
    """Return the record of an input file."""
    found: InputFile = {**identity, "cuts": [list(cut) for cut in file.cuts]}
    return {**found, "damage": file.damage} if file.damage else found


def known_cuts(record: JobRecord, changes: Mapping[str, str]) -> Known:
    """Return the cuts of the unchanged files of a record, each with the number of rows before it in its batch."""
    known: dict[str, tuple[int, list[list[int]], str]] = {}
    for batch in record["batches"]:
        n_before = 0
        for file in batch["files"]:
            if file["path"] not in changes:
                known[file["path"]] = n_before, file["cuts"], file.get("damage", "")
            n_before += file["cuts"][-1][0]
    return known


def describe_changes(
    recorded: Mapping[str, InputFile], present: Mapping[str, InputFile], files: Files
) -> dict[str, str]:
    """Describe the recorded files that are missing now or have another content, by path.

    `files` is the present input, in which a missing file may have another folder now.
    """
    moved = {(path.rpartition("/")[2], size): path for path, size in files if path not in recorded}
    paths = {content_of(file): path for path, file in recorded.items()}
    changes: dict[str, str] = {}
    for path, old in recorded.items():
        new = present.get(path)
        if new is None:
            other_path = moved.get((path.rpartition("/")[2], old["size"]))
            changes[path] = f"moved to {other_path}, but shards hold the paths" if other_path else "removed"
        elif content_of(new) != content_of(old):
            if other := paths.get(content_of(new)):
                changes[path] = f"reordered: it has the content of {other} now"
            elif new["size"] != old["size"]:
                changes[path] = f"changed: {old['size']} -> {new['size']} bytes"
            else:
                changes[path] = f"changed: another content of {new['size']} bytes"
    return changes


def content_of(file: InputFile) -> tuple[int, str, str]:
    """Return the part of an input file that is the same for equal contents."""
    return file["size"], file["hash"], file.get("footer", "")


class Work(NamedTuple):
    """The shards of a job."""

    plans: ShardPlans
    unfinished: ShardPlans
    record: JobRecord
    old_record: JobRecord | None
    outdated: list[int]  # shards with a manifest that are computed again, or belong to another job
    stale: list[str]  # records of failures of shards that are finished
    damages: list[Damage]  # of shards of this job; those that lack only their index are not in `unfinished`

    @property
    def formats(self) -> dict[int, Formats]:
        """The formats of the shards that have to be computed again with those in which they were written."""
        return {damage.plan.index: damage.formats for damage in self.damages}

    @property
    def unindexed(self) -> list[Damage]:
        """The shards that are finished but for their index."""
        return [damage for damage in self.damages if damage.only_index]

    @property
    def damaged(self) -> list[str]:
        """The errors of the damaged input files."""
        return [file["damage"] for batch in self.record["batches"] for file in batch["files"] if "damage" in file]

    def begin(self, store: Store) -> None:
        """Prepare the output: remove the manifests of outdated shards, then write the record.

        In this order, all manifests of an output belong to its record, whenever the job is killed, and no row is in two
        shards that count. The layout of a new output is recorded before the job is.
        """
        settle_layout(store, len(self.plans))
        store.remove_many(store.file(MANIFEST_FILE, index) for index in self.outdated)
        planned = set(self.plans.indices().tolist())
        gone = [index for index in self.outdated if index not in planned]
        store.remove_many(name for index in gone for name in store.shard_files(index))
        store.remove_many(self.stale)
        if self.outdated:
            store.remove([STATS_FILE, REPORT_FILE])  # of the shards that are discarded
        if self.outdated or self.old_record is None:
            store.remove([COMMAND_FILE])  # of a command, whose shards are discarded
        if self.record != self.old_record:
            write_record(store, self.record)


def plan_work(config: PipelineConfig, files: Files, provenance: Provenance, store: Store) -> Work:
    """Compare a job with the shards of its output; nothing is written.

    Raises UserError if finished shards would be discarded without `overwrite=true`, for more shards than indices, and
    like `plan_history`.
    """
    old = read_record(store)
    history = plan_history(files, old, config)
    plans = plans_of(history.batches, config.rows_per_shard)
    if len(plans) > MAX_SHARDS:
        raise UserError(f"the input has {len(plans)} shards; an output holds {MAX_SHARDS}: raise rows_per_shard")
    listing = list_output(store)
    candidates = plans
    differences = list[str]()
    if old is not None:
        candidates, differences = compare(config, plans, provenance, old, history)
    accepted = equal_provenances(config, provenance)
    # The manifests of an output without a record are the only source. Those of a local output are read to compare the
    # sizes of the files. Elsewhere the listing is enough: a manifest was uploaded after the store had confirmed the
    # files, and all manifests belong to the record. Only those of shards whose files are missing are read.
    listed = set[int]()
    if old is not None and not store.is_local:
        listed = list_finished(listing, candidates, config.write.formats)
    doubtful = candidates.without(listed)
    finished, damages = find_finished(store, listing, doubtful, config, accepted)
    finished |= listed
    outdated = sorted(set(listing.committed()) - finished)
    # If the records agree, the manifests of these shards tell why they are of no use; damaged shards give no reason.
    unclear = set(outdated) & set(candidates.indices().tolist()) if differences else outdated
    differences += describe_manifests(store, unclear, plans, config, accepted)
    if differences:
        report_differences(config, store, differences, len(outdated))
    if n_again := len({damage.plan.index for damage in damages} - finished):
        shards = counted(n_again, "finished shard")
        logger.warning("%s with missing or truncated files; computed again", shards)
    if history.n_appended:
        logger.info("%s appended", counted(history.n_appended, "new input file"))
    unfinished = plans.without(finished)
    record = make_record(config, provenance, history.batches)
    if old is not None and not (unfinished or outdated):  # a run that asks for fewer formats, for example
        record = {**old, "batches": history.batches}
    return Work(plans, unfinished, record, old, outdated, listing.stale_failures(), damages)


def compare(
    config: PipelineConfig, plans: ShardPlans, provenance: Provenance, record: JobRecord, history: History
) -> tuple[ShardPlans, list[str]]:
    """Return the plans of the shards that hold the same as in the recorded job, and the differences to it."""
    settings = setting_differences(record["settings"], settings_of(config))
    others = list(provenance_differences(record["provenance"], provenance))
    inputs = [f"input file {path}: {change}" for path, change in history.changes.items()]
    same: ShardPlans = plans.select(np.zeros(0, np.int64))
    if not others and settings.keys() <= set(PLAN_SETTINGS):
        pairs = enumerate(zip(plans, recorded_plans(record), strict=False))
        same = plans.select(
            np.array([i for i, (plan, old) in pairs if plan == old and is_unchanged(plan, history)], int)
        )
    old, new = record["provenance"].get("thresholds", {}), provenance["thresholds"]
    for key in settings:  # the values that took effect, once
        if (
            effect := f"{THRESHOLD}{(name := key.rpartition('.')[2])}: {show(old, name)} -> {show(new, name)}"
        ) in others:
            others.remove(effect)
            settings[key] = f"{key}{effect.removeprefix(THRESHOLD + name)}"
    return same, [*settings.values(), *others, *inputs]


def is_unchanged(plan: ShardPlan, history: History) -> bool:
    """Return True if no file of a shard has changed."""
    return not history.changes or not any(piece.path in history.changes for piece in plan.pieces)


def describe_manifests(
    store: Store,
    indices: Collection[int],
    plans: Sequence[ShardPlan],
    config: PipelineConfig,
    accepted: Sequence[Provenance],
) -> list[str]:
    """Describe how the jobs that committed these shards differ from this one, with the number of shards."""
    by_index = {plan.index: plan for plan in plans if plan.index in indices} if indices else {}
    counts: Counter[str] = Counter()
    manifests = map_concurrently(lambda index: (index, read_manifest(store, index)), indices)
    for index, manifest in manifests:
        if manifest is not None:
            counts.update(describe_manifest(manifest, by_index.get(index), config, accepted))
    return [f"{text} ({counted(n, 'shard')})" for text, n in counts.most_common()]


def describe_manifest(
    manifest: Manifest, plan: ShardPlan | None, config: PipelineConfig, accepted: Sequence[Provenance]
) -> list[str]:
    """Describe how the job that wrote a manifest differs from this one."""
    old, new = manifest["provenance"], accepted[0]
    found = list(provenance_differences(old, new))
    if old.get("config_hash") not in [provenance["config_hash"] for provenance in accepted]:
        found.append("settings: compare config.yaml in the output")
    if plan is None:
        found.append("input: fewer shards than in the output")
    elif manifest["plan"] != plan_json(plan):
        found.append("input: other rows, or another size of a file")
    if lacking := sorted(set(config.write.formats) - set(manifest["formats"])):
        found.append(f"write.formats: {lacking} are missing")
    return found


def cheaper(store: Store, differences: Sequence[str]) -> str:
    """Return the advice to rewrite the output, which needs no model, if thresholds of the scores alone differ."""
    changes = {text.partition(":")[0]: text.rpartition(" -> ")[2] for text in differences}
    if not all(key.startswith("score.min_") for key in changes):
        return ""
    keys = " ".join(f"{key}={value}" for key, value in changes.items())
    return f"`hypergrit rewrite source={store.url('').rstrip('/')} output=NEW {keys}` makes it without models; "


def report_differences(config: PipelineConfig, store: Store, differences: Sequence[str], n_outdated: int) -> None:
    """Log the differences. Raises UserError if finished shards would be discarded without `overwrite=true`."""
    shards = counted(n_outdated, "finished shard")
    text = f"{shards} {'differs' if n_outdated == 1 else 'differ'} (changed: {join(differences)})"
    if n_outdated and not config.overwrite:
        them = "it" if n_outdated == 1 else "them"
        raise UserError(
            f"{store.root}: {text}; {cheaper(store, differences)}overwrite=true makes {them} again, or give another output="
        )
    logger.warning("%s; %s", text, "computed again" if n_outdated else "all remain valid")
