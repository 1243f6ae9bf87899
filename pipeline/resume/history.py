"""The input of a job over its runs: batches of files, each of which begins a new shard."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.read.plan import Known, cut_files
from pipeline.read.plans import CutFile
from pipeline.resume.inputs import identify_files
from pipeline.resume.scan import scan_in_processes
from schemas.job import InputBatch, InputFile, JobRecord

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
