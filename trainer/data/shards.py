"""Read byte ranges of shards from local disks and from any store with an fsspec URL."""

import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from fsspec import AbstractFileSystem

from hypergrit_common import remote
from hypergrit_common.errors import UserError
from hypergrit_common.shards import is_local, read_errors_explained
from trainer.data.listing import ETAGS, Stored, stored_facts

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_OPEN_FILES: Final = 384  # per process, with room for its other files below 512
CHUNK_BYTES: Final = 1 << 17  # of a local file, which one read takes while its headers are walked
MAX_ATTEMPTS: Final = 4  # for each read from a remote store, with pauses of 1, 2 and 4 seconds
COMPARE_S: Final = 300.0  # between two comparisons of a remote shard with its version in the index


class ByteRange(NamedTuple):
    """The bytes [start, end) of a file."""

    path: str  # path or URL
    start: int
    end: int


class ShardFile(AbstractContextManager["ShardFile"]):
    """An open shard for reading headers at arbitrary offsets. Raises UserError if it cannot be read."""

    def __init__(self, url: str) -> None:
        fs, path = remote.open_store(url)
        self.url = url
        self.is_local = is_local(fs)
        self.start, self.chunk = 0, b""  # the last bytes that were read from a local file
        with read_errors_explained(url):
            self.file = open(path, "rb", buffering=0) if self.is_local else fs.open(path, "rb")  # noqa: SIM115
            self.size = int(self.file.seek(0, os.SEEK_END))

    def read_at(self, offset: int, length: int) -> bytes:
        """Read `length` bytes starting at `offset`, or fewer at the end of the shard."""
        if not self.is_local:
            return read_with_retries(partial(self._read_remote, offset, length), self.url)
        first = offset - self.start
        if first < 0 or first + length > len(self.chunk):
            self._read_chunk(offset, max(length, CHUNK_BYTES))
            first = 0
        return self.chunk[first : first + length]

    def _read_chunk(self, offset: int, length: int) -> None:
        """Read a chunk of a local file. Not mapped into memory: a page that is truncated away would end the process."""
        length = max(0, min(length, self.size - offset))
        with read_errors_explained(self.url):
            self.start, self.chunk = offset, os.pread(self.file.fileno(), length, offset)
        if len(self.chunk) < length:
            raise UserError(
                f"{self.url} became shorter while it was indexed: it had {self.size} bytes; create or download it "
                "again, then repeat the command"
            )

    def _read_remote(self, offset: int, length: int) -> bytes:
        self.file.seek(offset)
        data: bytes = self.file.read(length)
        return data

    def close(self) -> None:
        self.file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class ByteRangeReader:
    """Reads many byte ranges at once: local files stay open, and requests to a remote store run concurrently."""

    def __init__(self, indexed: Mapping[str, Stored] | None = None) -> None:
        """Create a reader of shards; `indexed` are their sizes and versions when they were indexed, by path or URL."""
        self.indexed = indexed or {}
        self.open_files: OrderedDict[str, int] = OrderedDict()  # path -> descriptor, least recently used first
        self.versions: dict[str, tuple[int, int]] = {}  # path -> size and modification time when it was first opened
        self.compared: dict[str, float] = {}  # URL -> time of the last comparison with the store
        self.present: dict[str, Stored] = {}  # URL -> what the store told then

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range.

        Raises UserError if a shard cannot be read, has changed since it was indexed or first read, or is too short.
        """
        data: list[bytes] = [b""] * len(ranges)
        remote_ranges: dict[AbstractFileSystem, list[tuple[int, ByteRange]]] = {}
        stores: dict[str, tuple[AbstractFileSystem, str]] = {}
        for index, (url, start, end) in enumerate(ranges):
            if "://" not in url:
                with read_errors_explained(url):
                    descriptor = self._descriptor(url)
                    self._check_unchanged(url, descriptor)
                    data[index] = os.pread(descriptor, end - start, start)
                if len(data[index]) < end - start:
                    raise UserError(
                        f"{url} has become shorter during the run: it ends before byte {end}; restore it, then repeat "
                        "the command to resume"
                    )
                continue
            if url not in stores:
                stores[url] = remote.open_store(url)
            fs, path = stores[url]
            remote_ranges.setdefault(fs, []).append((index, ByteRange(path, start, end)))
        for fs, requests in remote_ranges.items():
            indices, wanted = zip(*requests, strict=True)
            for index, content in zip(indices, read_remote_ranges(fs, wanted), strict=True):
                data[index] = content
        self._check_stores(list(stores))
        return data

    def _descriptor(self, path: str) -> int:
        if path in self.open_files:
            self.open_files.move_to_end(path)
            return self.open_files[path]
        if len(self.open_files) >= MAX_OPEN_FILES:
            os.close(self.open_files.popitem(last=False)[1])
        self.open_files[path] = os.open(path, os.O_RDONLY)
        return self.open_files[path]

    def _check_unchanged(self, path: str, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        present = facts.st_size, facts.st_mtime_ns
        indexed = self.indexed.get(path, Stored(present[0], ""))
        before = self.versions.get(path, (indexed.size, present[1]))
        if present[0] < before[0]:
            raise UserError(
                f"{path} has become shorter during the run: it has {present[0]} bytes, not {before[0]}; restore it, "
                "then repeat the command to resume"
            )
        is_known = path in self.versions or indexed.modified in ("", str(facts.st_mtime), str(os.lstat(path).st_mtime))
        if present != before or not is_known:
            raise replaced(path)
        self.versions[path] = present

    def _check_stores(self, urls: Sequence[str]) -> None:
        """Compare remote shards with their versions in the index, each after its first read and then at times."""
        now = time.monotonic()
        due = [url for url in urls if url in self.indexed and self.compared.get(url, -math.inf) < now - COMPARE_S]
        for url, info in zip(due, remote.map_concurrently(ask_store, due), strict=True):
            present, indexed = stored_facts(info), self.indexed[url]
            # Without ETags, listings may format times in another way than replies about one object.
            first = indexed if any(info.get(key) for key in ETAGS) else indexed._replace(modified="")
            if not is_same(self.present.get(url, first), present):
                raise replaced(url)
            self.compared[url], self.present[url] = now, present

    def close(self) -> None:
        """Close all files. The next `read` opens them again."""
        while self.open_files:
            os.close(self.open_files.popitem()[1])

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the open files, since descriptors are valid only in one process."""
        return {**vars(self), "open_files": OrderedDict()}


def ask_store(url: str) -> Mapping[str, Any]:
    """Return what fsspec tells of a shard at present: one HEAD request. Raises UserError if it keeps failing."""
    fs, path = remote.open_store(url)
    fs.invalidate_cache(path)
    return read_with_retries(partial(fs.info, path), url)


def is_same(before: Stored, now: Stored) -> bool:
    """True if a shard has the same size and version, as far as the store tells. Some stores quote ETags at times."""
    versions = [facts.modified.removeprefix("W/").strip('"') for facts in (before, now)]
    return now.size in (0, before.size) and ("" in versions or versions[0] == versions[1])


def replaced(url: str) -> UserError:
    """The error for a shard that has changed since it was indexed."""
    return UserError(f"{url} was replaced during the run; restore it, then repeat the command to resume")


def read_remote_ranges(fs: AbstractFileSystem, ranges: Sequence[ByteRange]) -> list[bytes]:
    """Read ranges of remote files concurrently, and retry those that fail.

    Raises UserError with the store's message if a range keeps failing, or if the store returns a wrong number of bytes.
    """
    paths, starts, ends = (list(column) for column in zip(*ranges, strict=True))
    results = fs.cat_ranges(paths, starts, ends, on_error="return")
    contents = []
    for (path, start, end), result in zip(ranges, results, strict=True):
        if isinstance(result, Exception):
            result = read_with_retries(partial(fs.cat_file, path, start, end), path)
        content = bytes(result)
        if len(content) != end - start:
            raise UserError(
                f"{path}: the store sent {len(content)} bytes instead of {end - start} at offset {start}; it does not "
                f"support range requests, or the shard changed during the run; copy the shards to a local disk"
            )
        contents.append(content)
    return contents


def read_with_retries(read: Callable[[], T], path: str) -> T:
    """Return `read()`, retried with growing pauses. Raises UserError with the message of the last failure."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return read()
        except Exception as error:  # exception types differ by store; all are failures of the network or the store
            message = remote.one_line(error)
            if attempt == MAX_ATTEMPTS:
                raise UserError(
                    f"{path} cannot be read: {message}; check the network and the store, then restart"
                ) from error
            logger.warning("%s: attempt %d of %d to read it failed: %s", path, attempt, MAX_ATTEMPTS, message)
            time.sleep(2 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")
