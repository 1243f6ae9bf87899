"""Folders of images as input: each image is a row, with the caption and the columns of the files beside it."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.remote import THREADS, map_concurrently, one_line, open_store, store_errors
from pipeline.read.config import ReadConfig
from pipeline.read.json_rows import parse_json
from pipeline.read.roots import Location, RefusedError, Root, file_size, read_file
from pipeline.read.samples import IMAGE_SUFFIXES
from pipeline.read.streams import INVALID
from pipeline.read.types import IMAGE, BadRecord, Load, Piece, Record
from pipeline.read.versions import object_version
from schemas.files import GRIT_CAPTION, GRIT_JSON


@dataclass(frozen=True)
class ImageFile:
    """An image of a folder; `caption` and `columns` are the names of the .txt and .json beside it, or None."""

    name: str
    caption: str | None
    columns: str | None


@dataclass(frozen=True)
class Listing:
    """The images of a folder in the order of their names; `size` is that of all files of the rows in bytes.

    `version` is a hash of their names, sizes and times of modification or ETags.
    """

    images: tuple[ImageFile, ...]
    size: int
    version: str


def is_image(name: str) -> bool:
    """Return True for the name of an image file; hidden files are none."""
    return not name.startswith((".", "_")) and _suffix(name) in IMAGE_SUFFIXES


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


def list_folder(path: str) -> Listing:
    """List a folder, without those in it. Raises UserError if that fails."""
    try:
        fs, root = open_store(path)
        fs.invalidate_cache(root)
        found = {info["name"].rstrip("/").rpartition("/")[2]: info for info in fs.ls(root.rstrip("/"), detail=True)}
    except store_errors(ValueError) as error:
        raise UserError(f"cannot list the input folder {path}: {one_line(error)}; check the folder") from error
    by_stem: dict[str, dict[str, str]] = {}
    for name in sorted(found):
        if _suffix(name) in (GRIT_CAPTION, GRIT_JSON):
            by_stem.setdefault(name.rpartition(".")[0], {}).setdefault(_suffix(name), name)
    images, used, size = [], list[str](), 0
    for name in sorted(found):
        if is_image(name) and found[name]["type"] != "directory":
            beside = by_stem.get(name.rpartition(".")[0], {})
            images.append(ImageFile(name, beside.get(GRIT_CAPTION), beside.get(GRIT_JSON)))
            used += [name, *beside.values()]
    digest = hashlib.sha256()
    for name in used:
        info = found[name]
        size += int(info["size"] or 0)
        time = info.get("mtime") if isinstance(fs, LocalFileSystem) else object_version(info)
        digest.update(f"{name}\0{info['size']}\0{time}\0".encode(errors="surrogateescape"))
    return Listing(tuple(images), size, f"listing:{digest.hexdigest()}")


def folder_rows(piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]) -> Iterator[Load]:
    """Yield the rows of a piece; the files beside the images are read, the images are left to `with_images`.

    Nothing but the folder is read: links that lead out of it are refused.
    """
    fs, name = open_store(piece.path)
    root = _root(fs, name.rstrip("/"), piece.path)
    images = list_folder(piece.path).images[piece.first_row : piece.first_row + piece.n_rows]
    found = ((image, is_wanted(row)) for row, image in enumerate(images, piece.first_row))
    yield from map_concurrently(partial(_load, root=root, config=config), found, THREADS)


def _root(fs: AbstractFileSystem, name: str, url: str) -> Root:
    if isinstance(fs, LocalFileSystem):
        return Root(fs, os.path.realpath(name), "")
    protocol, _, path = url.rstrip("/").partition("://")
    return Root(fs, path, protocol, name)


def _load(item: tuple[ImageFile, bool], root: Root, config: ReadConfig) -> Load:
    image, is_wanted = item
    record = _record(image, root, config) if is_wanted else BadRecord("")
    return partial(_copy, record)


def _copy(record: Record | BadRecord) -> Record | BadRecord:
    """Return a record that the caller may change: a row that fails is converted twice."""
    return record if isinstance(record, BadRecord) else dict(record)


def _record(image: ImageFile, root: Root, config: ReadConfig) -> Record | BadRecord:
    record: Record = {}
    try:
        if image.columns is not None:
            columns = _beside(image.columns, root, config)
            parsed = columns if isinstance(columns, BadRecord) else parse_json(columns)
            if isinstance(parsed, BadRecord):
                return BadRecord(f"{image.columns}: {parsed.message}")
            record = parsed
        if image.caption is not None and record.get("caption") is None:
            text = _beside(image.caption, root, config)
            if isinstance(text, BadRecord):
                return BadRecord(f"{image.caption}: {text.message}")
            record["caption"] = text.decode(config.encoding, INVALID).removeprefix("\ufeff")
    except RefusedError as error:
        return BadRecord(f"{image.name}: {error}")
    except FileNotFoundError as error:
        return BadRecord(f"{image.name}: {one_line(error)}")
    return {**record, IMAGE: Location(root, f"{root.path}/{image.name}")}


def _beside(name: str, root: Root, config: ReadConfig) -> Any:
    place = Location(root, f"{root.path}/{name}")
    size = file_size(place)
    if size > config.max_row_bytes:
        return BadRecord(f"{size} bytes, more than read.max_row_bytes={config.max_row_bytes}")
    return read_file(place, size)
