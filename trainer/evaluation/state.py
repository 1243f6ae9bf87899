"""The state of the files from which a result was computed: it is kept as long as they are the same."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.errors import prefixed
from common.shards import list_shards
from trainer.data.listing import list_facts
from trainer.evaluation.annotations import below
from trainer.evaluation.tasks.base import ImageSource


def shards_state(shards: str) -> str:
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


def is_unchanged(images: Mapping[str, str], data: Path) -> bool:
    """True if all folders are in the state that `images_state` returned."""
    return all(folder_state(data / folder) == state for folder, state in images.items())
