"""Run tasks on models, and write one JSON file per task and model.

OUTPUT/MODEL/TASK.json       result, or the reason for which it is missing
OUTPUT/MODEL/TASK.npz        numbers of single held-out items, see trainer.evaluation.metrics.items; not of all tasks
OUTPUT/MODEL/TASK-FIGURE.png figures
OUTPUT/MODEL/TASK-error.txt  traceback of an unexpected error
OUTPUT/cache/                features, and fingerprints of the training shards
OUTPUT/summary.md, index.html  see trainer.evaluation.report.page

A finished file is kept if the hash of the model, the options, the checksums of the annotations, the folders of the
images and the training shards are the same, and nothing was missing. One that this version would not write is computed
again: an output of strangers must not name files of this machine, or break the pages. An unexpected error ends one
task; among several processes it ends all, because the others wait for the one that failed. Under torchrun, all ranks
run the tasks and share the embedding; rank 0 writes.
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.json_file import fits, read_object, write_object
from hypergrit_common.locations import Locations, as_text
from hypergrit_common.shards import list_shards
from hypergrit_common.text import one_line, redact
from hypergrit_common.urls import safe_lines, safe_message
from trainer.data.listing import list_facts
from trainer.distributed.gather import all_ranks, rank, world_size
from trainer.evaluation.catalog import Task
from trainer.evaluation.embedder import CachedEmbedder
from trainer.evaluation.metrics.items import write_items
from trainer.evaluation.report.page import inline_file
from trainer.evaluation.report.tables import missing_parts
from trainer.evaluation.run.contamination import Contamination, count_copies, training_fingerprints
from trainer.evaluation.sets.annotations import below, checksum
from trainer.evaluation.sets.pictures import is_below
from trainer.evaluation.task import ImageSource, MissingFilesError, TaskOptions, TaskResult, UnsuitableModelError
from trainer.evaluation.tasks.examples import MISSING, UNREADABLE
from trainer.models.registry import model_name

# The state of the files from which a result was computed: it is kept as long as they are the same.


def shards_state(shards: Locations) -> str:
    """SHA-256 of the addresses and sizes of training shards; empty without shards.

    Raises UserError if there are none or their store cannot be read.
    """
    if not shards:
        return ""
    with prefixed("train_shards: "):
        facts = [(shard.url, shard.size) for shard in list_facts(list_shards(shards))]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def images_state(images: Iterable[ImageSource], data: Path) -> dict[str, str]:
    """The state of each folder with images, by its path, which is relative to `data` for folders below it."""
    folders = sorted({image.path.parent for image in images})
    return {below(data, path): folder_state(path) for path in folders}


def folder_state(folder: Path) -> str:
    """SHA-256 of names, sizes and modification times of the files in a folder; empty if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            files = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    except (OSError, ValueError):
        return ""
    facts = sorted((name, found.st_size, found.st_mtime_ns) for name, found in files)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


logger = logging.getLogger(__name__)

FORMAT: Final = 1
"""Version of the JSON files."""
CACHE: Final = "cache"
KINDS: Final[dict[type[Exception], str]] = {
    MissingFilesError: "missing",
    UnsuitableModelError: "unsuitable",
    UserError: "malformed",
}
"""Value of "kind" in a file without result, by error; "failed" for others."""

NOT_READ: Final = (MISSING, UNREADABLE, "unreadable box", "undecodable_image", "damaged shard")
"""Parts of the reasons for which examples are skipped that a repaired download removes."""
MAX_DEPTH: Final = 20
"""Nesting of the details of a result; those of the tasks have at most 6."""


class Finished(TypedDict):
    """The keys of a finished file, beside those of its identity."""

    metrics: dict[str, float | None]
    chance: dict[str, float | None]
    rules: dict[str, str]
    n_used: int
    skipped: dict[str, int]
    checksums: dict[str, str]
    details: dict[str, Any]
    images: dict[str, str]
    contamination: dict[str, int] | None
    figures: list[dict[str, str]]
    is_drawn: bool


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Data and output of a run."""

    data: Path
    output: Path
    options: TaskOptions
    train_shards: Locations = ""
    training: str = ""
    """State of the training shards, see `state.shards_state`."""
    workers: int = 4
    figures: bool = True


def run_task(task: Task, embedder: CachedEmbedder, label: str, settings: RunSettings) -> dict[str, Any]:
    """Run one task on one model, unless its file is finished. Returns the content of the file.

    Missing and malformed files, models that a task cannot use, and unexpected errors become a result with the keys
    "error" and "kind". If the comparison with the training shards fails, the result has "contamination_error". Raises
    OSError if a file cannot be written.
    """
    path = settings.output / label / f"{task.name}.json"
    identity = {
        "format": FORMAT,
        "task": task.name,
        "model": {"name": model_name(embedder.model), "hash": embedder.hash},
        "options": dataclasses.asdict(settings.options),
        "train_shards": redact(as_text(settings.train_shards)),
        "training": settings.training,
    }
    trace = path.with_name(f"{task.name}-error.txt")
    finished = all_ranks(read_finished(path, identity, settings) if rank() == 0 else None)[0]
    if finished is not None:
        logger.info("%s: %s is finished", label, task.name)
        return finished
    embedder.seen.clear()
    if rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.unlink(missing_ok=True)
    try:
        result = task.evaluate(embedder, settings.data, settings.options)
    except Exception as error:
        if not isinstance(error, tuple(KINDS)) and world_size() > 1:
            raise
        content = identity | explain(error, trace)
        logger.warning("%s: %s: %s", label, task.name, content["error"])
    else:
        content = identity | as_json(result)
        if rank() == 0:
            content["images"] = images_state(embedder.seen, settings.data)
            content |= contamination(embedder, settings, trace)
            content["figures"] = draw_figures(result, task.name, path.parent) if settings.figures else []
            content["is_drawn"] = settings.figures
        if "contamination_error" in content:
            logger.warning("%s: %s: %s", label, task.name, content["contamination_error"])
        for key, reason in missing_parts(content).items():
            logger.warning("%s: %s: %s: %s", label, task.name, key, reason)
        if rank() == 0 and result.items:
            write_items(result.items, path.with_suffix(".npz"))
    if rank() == 0:
        write_object(content, path)
    return content


def explain(error: Exception, trace: Path) -> dict[str, str]:
    """The keys "error" and "kind" for an error. The traceback of an unexpected one is written to the file `trace`."""
    for expected, kind in KINDS.items():
        if isinstance(error, expected):
            return {"error": safe_message(str(error)), "kind": kind}
    trace.write_text(safe_lines("".join(traceback.format_exception(error))), encoding="utf-8")
    text = safe_message(f"failed with {type(error).__name__}: {one_line(error)}; see {trace}")
    return {"error": text, "kind": "failed"}


def read_finished(path: Path, identity: Mapping[str, Any], settings: RunSettings) -> dict[str, Any] | None:
    """The content of a finished file of the same model, options, annotations and images; None without such a file.

    A file without figures is not finished if they are to be drawn. One that `run_task` would not write is logged.
    """
    data = settings.data
    try:
        content = read_object(path)
        is_same = all(content.get(key) == value for key, value in identity.items())
        if not is_same or {"error", "contamination_error"} & content.keys():
            return None
        check_content(content, identity, data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%s is damaged or of another version, and is computed again: %s", path, one_line(error))
        return None
    if missing_parts(content):
        return None
    if any(reason in why for why in content["skipped"] for reason in NOT_READ):
        return None
    if any(folder_state(data / folder) != state for folder, state in content["images"].items()):
        return None
    try:
        if any(checksum(data / name) != value for name, value in content["checksums"].items()):
            return None
    except (OSError, ValueError):
        return None
    has_figures = all(inline_file(path.parent / figure["file"]) for figure in content["figures"])
    return content if has_figures and (content["is_drawn"] or not settings.figures) else None


def check_content(content: Mapping[str, Any], identity: Mapping[str, Any], data: Path) -> None:
    """Raise ValueError for the content of a file that `run_task` would not write for a task with data in `data`."""
    if content.keys() != identity.keys() | Finished.__annotations__.keys() or not fits(content, Finished):
        raise ValueError("a key is missing, unknown or of another type")
    if content["contamination"] is not None and content["contamination"].keys() != Contamination.__annotations__.keys():
        raise ValueError("contamination has other keys")
    if depth(content["details"]) > MAX_DEPTH:
        raise ValueError(f"details are nested deeper than {MAX_DEPTH}")
    if not all(is_below(ImageSource(path=data / name), data) for name in [*content["images"], *content["checksums"]]):
        raise ValueError("a file or folder is not below the data folder")
    for figure in content["figures"]:
        name = figure.get("file", "")
        if figure.keys() != {"file", "title"} or not re.fullmatch(rf"{content['task']}-[^/\0]+\.png", name):
            raise ValueError(f"{name!r} is no figure of the task")


def depth(value: Any) -> int:
    """The nesting depth of a JSON value; 1 for a number or text."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, items), default=0)


def contamination(embedder: CachedEmbedder, settings: RunSettings, trace: Path) -> dict[str, Any]:
    """The key "contamination": the numbers of images of the task that appear in the training shards.

    The value without shards or images, and after an error: None. The key "contamination_error" holds the error.
    """
    if not settings.train_shards or not embedder.seen:
        return {"contamination": None}
    try:
        shards, cache, workers = settings.train_shards, settings.output / CACHE, settings.workers
        found = count_copies(embedder.seen, training_fingerprints(shards, cache, workers, settings.training), workers)
    except Exception as error:
        reason = explain(error, trace)["error"]
        return {"contamination": None, "contamination_error": f"no comparison with the training shards: {reason}"}
    return {"contamination": dataclasses.asdict(found)}


def as_json(result: TaskResult) -> dict[str, Any]:
    """The fields of a result as JSON values. Numbers that are not finite become None."""
    names = ("metrics", "chance", "rules", "n_used", "skipped", "checksums", "details")
    content = {name: getattr(result, name) for name in names} | {"figures": []}
    finite: dict[str, Any] = json.loads(json.dumps(drop_non_finite(content), default=str))
    return finite


def drop_non_finite(value: Any) -> Any:
    """Replace numbers that are not finite, which JSON cannot hold, by None."""
    if isinstance(value, Mapping):
        return {str(key): drop_non_finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [drop_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def draw_figures(result: TaskResult, name: str, folder: Path) -> list[dict[str, str]]:
    """Write the figures of a result as PNG files; return their names and titles. None are drawn without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for figure in result.figures:
        file = f"{name}-{figure.name}.png"
        try:
            figure.draw(folder / file)
        except OSError:
            raise
        except Exception as error:  # a result is not lost for its figures
            logger.warning("%s: figures are missing: %s", name, one_line(error))
            logger.debug("%s", figure.name, exc_info=True)
            break
        drawn.append({"file": file, "title": figure.title})
    return drawn
