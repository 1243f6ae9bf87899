"""Read training examples from shards of the pipeline: grit/*.tar or arrow/*.arrow, on disk or at any fsspec URL."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import IO, Final, NamedTuple

import pyarrow as pa

from common.errors import UserError, prefixed
from common.remote import map_concurrently, one_line, open_file, open_store, store_errors
from common.shards import list_shards, read_errors_explained
from common.tar import Member, TarError, iter_members, reader_of
from pipeline.ground.grounder import Span
from schemas.status import KEPT

SUFFIXES: Final = (".tar", ".arrow")
MAX_JSON_BYTES: Final = 64_000_000
COLUMNS: Final = ["status", "height", "width", "caption", "noun_chunks", "boxes", "box_scores"]

Corners = tuple[float, float, float, float]
"""x_min, y_min, x_max, y_max as fractions of the image."""


class StoredExample(NamedTuple):
    """An example of a shard, and the position of its image in the file."""

    url: str  # of the shard; a path if it is local
    position: int  # in an .arrow file, the row; in a .tar file, the offset of the image's first byte
    n_bytes: int  # in a .tar file, the length of the image
    height: int
    width: int
    caption: str
    boxes: tuple[Corners, ...]
    spans: tuple[Span, ...]  # span of the phrase of each box


def list_training_shards(shards: str) -> list[str]:
    """List the .tar and .arrow files of a folder, glob, file or URL, or of several separated by commas.

    The files are in numeric order. For an output folder of the pipeline, they are the files of grit/, or those of
    arrow/ if there is no grit/. Uncommitted files, which have no manifest, are skipped with a warning. Raises UserError
    if no file is found.
    """
    with prefixed("shards: "):
        found = list_shards(shards, formats=("grit", "arrow"), suffixes=SUFFIXES)
        usable = [url for url in found if url.endswith(SUFFIXES)]  # a glob can also match the .parquet files of grit/
        if not usable:
            raise UserError(f"{shards} holds no *.tar or *.arrow; give an output folder of the pipeline")
    return usable


def read_captions(urls: Sequence[str]) -> Iterator[str]:
    """Yield the captions of all examples."""
    return (example.caption for url in urls for example in read_examples(url))


def read_examples(url: str) -> Iterator[StoredExample]:
    """Yield the examples of a shard without their images. Raises UserError if it cannot be read or is not a shard."""
    return _arrow_examples(url) if url.endswith(".arrow") else _tar_examples(url)


def read_images(examples: Sequence[StoredExample]) -> list[bytes]:
    """Return the encoded images of examples; those of remote shards are requested concurrently.

    Raises UserError or OSError if an image cannot be read.
    """
    if any(_is_remote(example.url) for example in examples):
        return list(map_concurrently(_read_image, examples))
    return [_read_image(example) for example in examples]


def _is_remote(url: str) -> bool:
    return "://" in url  # list_shards returns local files as paths


def _read_image(example: StoredExample) -> bytes:
    if example.url.endswith(".arrow"):
        data: bytes = _arrow_table(example.url)["image"][example.position].as_py()
        return data
    if _is_remote(example.url):
        fs, path = open_store(example.url)
        with read_errors_explained(example.url):
            return bytes(fs.cat_file(path, start=example.position, end=example.position + example.n_bytes))
    with open(example.url, "rb") as file:
        file.seek(example.position)
        return file.read(example.n_bytes)


@cache
def _arrow_table(url: str) -> pa.Table:
    """Return the table of an .arrow file. It is cached: reading it again would decompress all columns again."""
    with _damage_explained(url, "arrow/"):
        if not _is_remote(url):
            return pa.ipc.open_file(pa.memory_map(url)).read_all()
        with open_file(url) as file:
            return pa.ipc.open_file(pa.PythonFile(file)).read_all()


def _arrow_examples(url: str) -> Iterator[StoredExample]:
    table = _arrow_table(url)
    missing = {*COLUMNS, "image"} - set(table.schema.names)
    if missing:
        raise UserError(f"{url} is not a shard of the pipeline's arrow/: it has no column {', '.join(sorted(missing))}")
    images = table["image"]
    for position, row in enumerate(table.select(COLUMNS).to_pylist()):
        if row["status"] == KEPT:
            if not images[position].is_valid:
                raise UserError(
                    f"{url} holds no images; write it with write.image_bytes=true, or give the grit/ of the same output"
                )
            scored = zip(row["boxes"], row["box_scores"], strict=True)
            boxes = [box for box, score in scored if score["removed"] is None]
            chunks = [row["noun_chunks"][box["phrase"]] for box in boxes]
            yield StoredExample(
                url=url,
                position=position,
                n_bytes=0,
                height=row["height"],
                width=row["width"],
                caption=row["caption"],
                boxes=tuple((box["x_min"], box["y_min"], box["x_max"], box["y_max"]) for box in boxes),
                spans=tuple((chunk["start"], chunk["end"]) for chunk in chunks),
            )


def _tar_examples(url: str) -> Iterator[StoredExample]:
    """Yield the examples of a tar of grit/: a .jpg, a .txt and a .json member for each, in this order."""
    with _damage_explained(url, "grit/"), _open(url) as file:
        read_at = reader_of(file)
        image: Member | None = None
        for member in iter_members(read_at, 0, file.seek(0, os.SEEK_END), needs_mark=True):
            if member.name.endswith(".jpg"):
                image = member
            elif member.name.endswith(".json") and image and image.name[:-4] == member.name[:-5]:
                if member.size > MAX_JSON_BYTES:
                    raise ValueError(f"{member.name} has {member.size} bytes")
                row = json.loads(read_at(member.data_offset, member.size))
                yield StoredExample(
                    url=url,
                    position=image.data_offset,
                    n_bytes=image.size,
                    height=row["height"],
                    width=row["width"],
                    caption=row["caption"],
                    boxes=tuple(
                        (x_min, y_min, x_max, y_max) for _, _, x_min, y_min, x_max, y_max, *_ in row["noun_chunks"]
                    ),
                    spans=tuple((int(start), int(end)) for start, end, *_ in row["noun_chunks"]),
                )


def _open(url: str) -> IO[bytes]:
    return open_file(url) if _is_remote(url) else open(url, "rb")


@contextmanager
def _damage_explained(url: str, folder: str) -> Iterator[None]:
    """Raise UserError if the shard cannot be read, or is not a file of `folder` in the pipeline's output."""
    try:
        yield
    except store_errors() as error:
        raise UserError(
            f"{url} cannot be read: {one_line(error)}; check the path and the permissions, or write the shard again"
        ) from error
    except (TarError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise UserError(
            f"{url} is not a shard of the pipeline's {folder}, or is damaged: {type(error).__name__}: {one_line(error)}"
        ) from error
