"""The input of a job over its runs: the identity of its files, by content, and how they are cut into shards."""

import hashlib
import logging
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import IO, Final, NamedTuple

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.config import default_settings, flatten, split_runtime
from hypergrit_common.errors import UserError
from hypergrit_common.files import is_broken_link
from hypergrit_common.remote import map_concurrently, open_file, open_store, store_errors
from hypergrit_common.remote import one_line as one_remote_line
from pipeline.config import PipelineConfig
from pipeline.faults import Child, ProcessDiedError, RemoteError, StepTimeoutError
from pipeline.read.config import ReadConfig
from pipeline.read.listing import format_of
from pipeline.read.plan import CutFile, Known, cut_files
from pipeline.read.roots import object_version
from pipeline.read.samples import Scan, Tars, list_folder, scan_tar, scan_tars
from pipeline.read.understood import Readings
from schemas.job import InputBatch, InputFile, InputReading, JobRecord

logger = logging.getLogger("hypergrit")


# The identity of input files, by content.

WHOLE_BYTES: Final = 10**9
"""Local files up to this size are hashed completely, larger ones by sampled blocks."""
WHOLE_TAR_BYTES: Final = 1 << 24
"""The same for tars, whose images are too many bytes to read before the job: 22 TB for 7.5e8 samples."""
BLOCK_BYTES: Final = 1 << 20
HASHED_BLOCKS: Final = {"blocks": (64, BLOCK_BYTES), "samples": (16, 1 << 16)}
"""Prefix of a recorded hash of blocks -> their number and bytes."""


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
        if method not in ("sha256", *HASHED_BLOCKS):
            most, blocks = (WHOLE_TAR_BYTES, "samples") if format_of(path) == "tar" else (WHOLE_BYTES, "blocks")
            method = "sha256" if facts.st_size <= most else blocks
        found["hash"] = f"{method}:{hash_file(method, file, facts.st_size)}"
        if method == "blocks" and format_of(path) == "parquet":
            found["footer"] = hash_footer(file, facts.st_size)
    return found


def _identify_object(fs: AbstractFileSystem, path: str, name: str, known: InputFile | None) -> InputFile:
    info = fs.info(name)
    version = object_version(info)
    if not version:
        logger.warning("%s has neither an ETag nor a date, so that only changes of its size are noticed", path)
    found: InputFile = {"path": path, "size": int(info["size"] or 0), "hash": f"etag:{version}", "cuts": []}
    if format_of(path) == "parquet":
        if known and (known["size"], known["hash"]) == (found["size"], found["hash"]) and "footer" in known:
            found["footer"] = known["footer"]
        else:
            with open_file(path) as file:
                found["footer"] = hash_footer(file, file.seek(0, os.SEEK_END))
    return found


def hash_file(method: str, file: IO[bytes], size: int) -> str:
    """Hash a file, or blocks of it at equal distances; the first block and the last are at the ends of the file."""
    if method == "sha256":
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    digest = hashlib.sha256()
    n_blocks, n_bytes = HASHED_BLOCKS[method]
    for i in range(n_blocks):
        file.seek(max(0, size - n_bytes) * i // (n_blocks - 1))
        digest.update(file.read(n_bytes))
    return digest.hexdigest()


def hash_footer(file: IO[bytes], size: int) -> str:
    """Hash the footer of a parquet file, which has the sizes, positions and statistics of its columns."""
    file.seek(max(0, size - 8))
    tail = file.read(8)
    start = max(0, size - 8 - int.from_bytes(tail[:4], "little"))
    file.seek(start)
    return hashlib.sha256(file.read(size - start)).hexdigest()


# Scan tars in child processes, one per core.

FEW: Final = 8
"""Tars up to which the start of processes takes longer than it saves."""
TIMEOUT_S: Final = 24 * 3600.0
"""Longest time for a tar."""


class TarScanner:
    """Scans tars one at a time; the object of a child process."""

    def __init__(self, config: ReadConfig, limit: int | None) -> None:
        self.config, self.limit = config, limit

    def scan(self, path: str, size: int, below: str) -> Scan:
        """Find the samples of a tar."""
        return scan_tar(path, size, below, self.config, self.limit)


def scan_in_processes(files: Tars, config: ReadConfig, limit: int | None) -> Generator[Scan, None, None]:
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


def scan_in(idle: "SimpleQueue[Child]", file: tuple[str, int, str]) -> Scan:
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
PLAN_SETTINGS: Final = ("limit", "rows_per_shard")
"""Settings that decide which rows a shard holds. Shards that hold the same rows are kept when they change."""


class History(NamedTuple):
    """The batches of the present input, and what changed in files of the record: path -> description."""

    batches: list[InputBatch]
    changes: Mapping[str, str]
    n_appended: int
    readings: list[InputReading]


def plan_history(
    files: Files, record: JobRecord | None, config: PipelineConfig, folders: Sequence[str] = ()
) -> History:
    """Plan the present input: the files of the record in its order, then the new ones as a batch of their own.

    A change of `limit`, `rows_per_shard` or of how rows are read begins a new history. Raises UserError if the input holds
    no rows, or a file cannot be read. `folders` are those of the input.
    """
    readings = Readings(config.read)
    plan = partial(plan_batches, config=config, folders=folders)
    if record is None:
        return History(check_rows(plan([files], {}, {}, readings=readings), config.input), {}, 0, readings.found)
    sizes = dict(files)
    recorded = {file["path"]: file for batch in record["batches"] for file in batch["files"]}
    present = {file["path"]: file for file in identify_files([item for item in files if item[0] in recorded], recorded)}
    changes = describe_changes(recorded, present, files)
    if is_other_plan(record, config):
        return History(
            check_rows(plan([files], present, {}, readings=readings), config.input), changes, 0, readings.found
        )
    old = [[(file["path"], sizes[file["path"]]) for file in batch["files"] if file["path"] in sizes]
           for batch in record["batches"]]  # fmt: skip
    new = [item for item in files if item[0] not in recorded]
    found = record["input"]["readings"] if "input" in record else []
    is_known = not changes or (config.limit is None and not any(reading["file"] in changes for reading in found))
    known = known_cuts(record, changes) if is_known else {}
    readings = Readings(config.read, found if is_known else ())
    batches = check_rows(plan([*old, new], present, known, readings=readings, recorded=recorded), config.input)
    n_appended = sum(file["path"] not in recorded for batch in batches for file in batch["files"])
    return History(batches, changes, n_appended if any(old) else 0, readings.found)


def is_other_plan(record: JobRecord, config: PipelineConfig) -> bool:
    """Return True if the settings that decide the rows of shards are not those of the record."""
    now, before = flatten(split_runtime(config)[0]), {**flatten(default_settings(config)), **record["settings"]}
    return any(
        before.get(key) != value for key, value in now.items() if key in PLAN_SETTINGS or key.startswith("read.")
    )


def check_rows(batches: list[InputBatch], source: str | Sequence[str]) -> list[InputBatch]:
    """Return `batches`. Raises UserError if they have no rows."""
    if not any(batch["rows"] for batch in batches):
        raise UserError(f"input {source!r} holds no rows; give files with at least one row")
    return batches


def plan_batches(
    groups: Sequence[Files], identified: Mapping[str, InputFile], known: Known, config: PipelineConfig,
    readings: Readings, recorded: Mapping[str, InputFile] = MappingProxyType({}), folders: Sequence[str] = ()
) -> list[InputBatch]:  # fmt: skip
    """Divide groups of files into shards; each group begins a new shard.

    Groups without rows are left out, unless a file is damaged, which the record must tell.
    `identified` holds files whose identity is known already; `known` and `readings` as in `cut_files`; `recorded` are the
    files of the record.
    """
    batches: list[InputBatch] = []
    n_shards = n_rows = 0
    for files in groups:
        limit = None if config.limit is None else config.limit - n_rows
        cut = (
            cut_files(files, config.rows_per_shard, limit, config.read, known, scan_in_processes, readings, folders)
            if limit != 0
            else []
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
                "files": [with_cuts(by_path[file.path], file, recorded if file.path in known else {}) for file in cut],
            }
        )
        n_shards, n_rows = n_shards + shards, n_rows + rows
    return batches


def with_cuts(identity: InputFile, file: CutFile, recorded: Mapping[str, InputFile]) -> InputFile:
    """Return the record of an input file; how it was understood is in `recorded` if its cuts were known."""
    found: InputFile = {**identity, "cuts": [list(cut) for cut in file.cuts]}
    if file.damage:
        found["damage"] = file.damage
    old = recorded.get(file.path, identity) if file.reading is None else identity
    reading, tally = old.get("reading", file.reading), old.get("tally", dict(file.tally))
    if reading is not None:
        found["reading"] = reading
    if tally:
        found["tally"] = tally
    return found


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
            changes[path] = f"moved to {other_path}, but shards hold its name" if other_path else "removed"
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
