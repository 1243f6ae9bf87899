"""Which tars there are, where their samples begin, and their bytes: on disk or behind any fsspec URL."""

import logging
import mmap
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from fsspec import AbstractFileSystem

from common import remote
from common.errors import UserError
from common.shards import is_local, read_errors_explained

logger = logging.getLogger(__name__)

OPEN_FILES: Final = 64  # of each process: as many shards as a shuffle buffer reaches into, and more
TRIES: Final = 4  # to read from a remote store; a second, two and four between them

Span = tuple[str, int, int]
"""URL of a shard, first byte, byte after the last."""


def stamp(url: str) -> str:
    """What changes when the shard does: its size, and what the store says of its age."""
    fs, path = remote.open_store(url)
    with read_errors_explained(url):
        info = fs.info(path)
    fields = ("size", "mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "created")
    return " ".join(str(info[name]) for name in fields if info.get(name) is not None)


class ShardFile:
    """A shard from its beginning to its end, for reading headers here and there."""

    def __init__(self, url: str) -> None:
        fs, path = remote.open_store(url)
        self.url = url
        self.map: mmap.mmap | None = None
        with read_errors_explained(url):
            self.file = open(path, "rb") if is_local(fs) else fs.open(path, "rb")  # noqa: SIM115
            self.size = int(self.file.seek(0, os.SEEK_END))
        if is_local(fs) and self.size:
            self.map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)

    def read_at(self, offset: int, length: int) -> bytes:
        if self.map is not None:
            return self.map[offset : offset + length]
        return again(partial(self.read_remote, offset, length), self.url)

    def read_remote(self, offset: int, length: int) -> bytes:
        self.file.seek(offset)
        data: bytes = self.file.read(length)
        return data

    def close(self) -> None:
        if self.map is not None:
            self.map.close()
        self.file.close()

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpanReader:
    """Bytes of many samples at once. Files stay open; range requests to a remote store run side by side."""

    def __init__(self) -> None:
        self.open_files: OrderedDict[str, int] = OrderedDict()

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """The bytes of each span, fewer at the end of a file. Raises UserError for a shard that cannot be read."""
        data: list[bytes] = [b""] * len(spans)
        wanted_of: dict[AbstractFileSystem, list[tuple[int, str]]] = {}
        stores: dict[str, tuple[AbstractFileSystem, str]] = {}
        for index, (url, first, last) in enumerate(spans):
            if "://" not in url:
                with read_errors_explained(url):
                    data[index] = os.pread(self.descriptor(url), last - first, first)
                continue
            if url not in stores:
                stores[url] = remote.open_store(url)
            fs, path = stores[url]
            wanted_of.setdefault(fs, []).append((index, path))
        for fs, wanted in wanted_of.items():
            ranges = [(path, spans[index][1], spans[index][2]) for index, path in wanted]
            for (index, _), content in zip(wanted, cat_ranges(fs, ranges), strict=True):
                data[index] = content
        return data

    def descriptor(self, path: str) -> int:
        if path in self.open_files:
            self.open_files.move_to_end(path)
            return self.open_files[path]
        if len(self.open_files) >= OPEN_FILES:
            os.close(self.open_files.popitem(last=False)[1])
        self.open_files[path] = os.open(path, os.O_RDONLY)
        return self.open_files[path]

    def close(self) -> None:
        while self.open_files:
            os.close(self.open_files.popitem()[1])

    def __getstate__(self) -> dict[str, Any]:
        return {"open_files": OrderedDict()}


def cat_ranges(fs: AbstractFileSystem, ranges: Sequence[Span]) -> list[bytes]:
    """Parts of remote files, all at once; one that fails is asked for again.

    Raises UserError with the store's answer, and for one that sends other parts than it was asked for.
    """
    paths, starts, ends = (list(column) for column in zip(*ranges, strict=True))
    answers = fs.cat_ranges(paths, starts, ends, on_error="return")
    parts = []
    for (path, start, end), answer in zip(ranges, answers, strict=True):
        part = bytes(again(partial(fs.cat_file, path, start, end), path) if isinstance(answer, Exception) else answer)
        if len(part) != end - start:
            raise UserError(
                f"{path} sent {len(part)} bytes for {end - start} at {start}: its store knows no range "
                f"requests, or the shard is another than at the start; copy the shards to a disk"
            )
        parts.append(part)
    return parts


def again(ask: Callable[[], bytes], path: str) -> bytes:
    """What a remote store sends, asked a few times. Raises UserError with its last answer."""
    for attempt in range(1, TRIES + 1):
        try:
            return ask()
        except Exception as error:  # each store has its own; all of them are the network's or the store's
            answer = remote.one_line(error)
            if attempt == TRIES:
                raise UserError(f"{path} cannot be read: {answer}") from error
            logger.warning("reading %s failed (%s); attempt %d of %d", path, answer, attempt, TRIES)
            time.sleep(2 ** (attempt - 1))
    raise AssertionError("there is a last attempt")
