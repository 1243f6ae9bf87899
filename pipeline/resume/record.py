"""The record of a job in its output, `_job.json`, and the plan of the shards that it holds."""

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from common.config import split_runtime
from common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.read.plans import Batch, CutFile, ShardPlans
from pipeline.resume.inputs import version_of
from pipeline.write.store import Store
from schemas.files import JOB_FILE
from schemas.job import InputBatch, InputFile, JobRecord
from schemas.manifest import Provenance
from schemas.rows import VERSION

DAMAGE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""Exceptions of reading a record with wrong types, or of JSON that is nested too deeply."""


def read_record(store: Store) -> JobRecord | None:
    """Read the record of the job that wrote the shards; None for a new output, or one of version 0.2 or earlier.

    Raises UserError if the file is damaged.
    """
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
    return {"schema": VERSION, "settings": settings_of(config), "provenance": provenance, "batches": list(batches)}


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
