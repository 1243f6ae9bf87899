"""Access to files by path or fsspec URL: opening, the exceptions of stores, and concurrent requests."""

import asyncio
import io
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable
from typing import IO, Any, Final, cast

from fsspec import AbstractFileSystem
from fsspec.asyn import sync
from fsspec.caching import BaseCache, register_cache
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import available_protocols, known_implementations
from fsspec.utils import get_protocol

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.text import one_line as one_line
from hypergrit_common.threads import Item, Result, map_in_threads
from hypergrit_common.time_limits import S3_TRIES, time_limits

# Reading of the headers of a remote file: contents that are large are skipped, small ones are read with the headers.

LEAST: Final = 1 << 16
"""Bytes of a request after large contents: they hold a header and the small members that often follow it."""
MOST: Final = 1 << 24
"""Bytes of a request in a file of small contents."""
SKIPPED: Final = 1 << 20
"""Contents beyond a request up to which reading on is faster than another request: 10 ms at 100 MB/s."""


class HeaderCache(BaseCache):
    """The last bytes that were read of a remote file, with a read-ahead that depends on how far its reader jumps.

    A request that begins at most SKIPPED bytes, or the length of the last one, after its end is twice as long as that,
    up to MOST; any other one has LEAST bytes, or as many as are asked for. Of a tar of images of 30 kB everything is
    read, in few requests; of one of videos little more than the headers.
    """

    name = "headers"

    def __init__(self, blocksize: int, fetcher: Callable[[int, int], bytes], size: int) -> None:
        super().__init__(blocksize, fetcher, size)
        self.cache, self.start, self.end, self.ahead = b"", 0, 0, LEAST // 2

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        """Return bytes [start, stop) of the file, or fewer at its end."""
        first, end = start or 0, self.size if stop is None else min(stop, self.size)
        if first >= end:
            return b""
        if not self.start <= first <= end <= self.end:
            is_near = 0 <= first - self.end <= max(self.ahead, SKIPPED) or self.start <= first < self.end
            self.ahead = min(2 * self.ahead, MOST) if is_near else LEAST
            self.start, self.end = first, min(max(end, first + self.ahead), self.size)
            self.cache = self.fetcher(self.start, self.end)
        return bytes(self.cache[first - self.start : end - self.start])


register_cache(HeaderCache, clobber=True)


# Size of the read buffer in bytes. Without it, fsspec copies the whole block (50 MB on S3) for every line read.
BUFFER: Final = 1 << 20
# Number of concurrent requests to a store.
THREADS: Final = 16
WAITING: Final = 16 * THREADS
CLIENT_ERRORS: Final = {"botocore.exceptions": ("BotoCoreError", "ClientError"), "aiohttp": ("ClientError",)}
"""Module -> exceptions of HTTP clients that fsspec does not convert to OSError."""
CHECKSUM_VARIABLE: Final = "AWS_REQUEST_CHECKSUM_CALCULATION"
CHECKSUMS: Final = re.compile(
    r"notimplemented|\b501\b|checksum|content-?md5|sha-?256|digest|trailer|aws-chunked|missingcontentlength",
    re.IGNORECASE,
)
"""What S3 stores answer to the checksums that clients send since 2025, and where one is missing."""
EXAMPLES: Final = "s3://, gs://, abfs://, hf://, https:// or another protocol of fsspec"


def open_store(url: str, **options: Any) -> tuple[AbstractFileSystem, str]:
    """Return the file system of `url` and the path in it; no request is sent.

    Raises UserError if fsspec does not support the protocol, or if the package for it is missing; the message names the
    package.
    """
    try:
        fs, path = url_to_fs(url, **time_limits(url), **options)
    except ImportError as error:
        package = known_implementations.get(get_protocol(url), {}).get("class", "").partition(".")[0]
        # For protocols that fsspec implements itself, its message already names the missing package.
        fix = f"; pip install '{package}'" if package not in ("", "fsspec") else ""
        raise UserError(f"{url}: {error}{fix}") from error
    except store_errors(ValueError) as error:
        fix = "" if get_protocol(url) in available_protocols() else f"; give a path, or a URL such as {EXAMPLES}"
        raise UserError(f"{url}: {one_line(error)}{fix}") from error
    if get_protocol(url) in ("s3", "s3a"):
        fs.retries = S3_TRIES
    return fs, str(path)


def open_file(url: str, headers: bool = False) -> IO[bytes]:
    """Open a file for reading. Raises UserError like `open_store`, and one of `store_errors` if opening fails.

    `headers`: mostly headers are read, which may lie far apart; of a remote file, large contents are then left out.
    """
    fs, path = open_store(url)
    known: dict[str, Any] = {}
    if isinstance(fs, LocalFileSystem):
        check_file(path)
    elif hasattr(fs, "encode_url"):  # of HTTP
        content, known["size"] = sync(fs.loop, whole_content, fs, path)
        if content is not None:
            return io.BytesIO(content)
    if headers and not isinstance(fs, LocalFileSystem):
        return cast(IO[bytes], fs.open(path, "rb", cache_type=HeaderCache.name, **known))
    file = fs.open(path, "rb", **known)
    return cast(IO[bytes], file if isinstance(fs, LocalFileSystem) else io.BufferedReader(file, BUFFER))


WHOLE_BYTES: Final = 64_000_000
"""Largest file that is read as a whole from a web server that sends no parts of files."""


async def whole_content(fs: Any, url: str) -> tuple[bytes | None, int | None]:
    """Return a file of a web server without parts of files, else None and the size, if known. Raises like `open_file`."""
    headers = {**fs.kwargs.get("headers", {}), "Range": "bytes=0-0", "Accept-Encoding": "identity"}
    options = {**fs.kwargs, "headers": headers}
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), **options) as answer:
        if answer.status in (206, 416):  # a part, or a file without a byte
            size = answer.headers.get("Content-Range", "").rpartition("/")[2]
            return None, int(size) if size.isdecimal() else None
        fs._raise_not_found_for_status(answer, url)
        try:
            await answer.content.readexactly(WHOLE_BYTES + 1)
        except asyncio.IncompleteReadError as end:
            return end.partial, None
    raise UserError(
        f"{url} has more than {WHOLE_BYTES} bytes, and its server sends no parts of files; download it first, by curl -LO "
        "URL, and give the file"
    )


def is_s3(fs: AbstractFileSystem) -> bool:
    """Return True for the file system of s3fs."""
    return "s3" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def store_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exceptions to catch for a failed request to a store, and `others`: `except store_errors() as error`.

    Pass ValueError if the `try` block calls only fsspec, which raises it for a malformed endpoint. Exceptions of
    packages that are not imported are omitted: importing them takes seconds, and they cannot have raised anything.
    """
    modules = {name: sys.modules[name] for name in CLIENT_ERRORS if name in sys.modules}
    errors = [getattr(module, name) for module_name, module in modules.items() for name in CLIENT_ERRORS[module_name]]
    return OSError, *errors, *others


def error_code(error: BaseException) -> str:
    """Return the code that S3 gave for an error, "" for other errors."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def refusal(error: BaseException, fix: str) -> str:
    """Return what a store answered, with the code of S3, and the fix: `fix`, or a variable if checksums are refused."""
    code, text = error_code(error), one_line(error)
    if code and CHECKSUMS.search(f"{code} {text}"):
        is_set = os.environ.get(CHECKSUM_VARIABLE, "").lower() == "when_required"
        change = f"unset {CHECKSUM_VARIABLE}" if is_set else f"export {CHECKSUM_VARIABLE}=when_required"
        fix = f"the store may have other rules for checksums than AWS: {change}"
    return f"{text if code in text else f'{code}: {text}'}; {fix}"


def map_concurrently(
    request: Callable[[Item], Result], items: Iterable[Item], n_waiting: int | None = None
) -> Generator[Result, None, None]:
    """Yield `request(item)` for each item, in order; up to `THREADS` requests run concurrently.

    At most `n_waiting` items, by default `WAITING`, are taken before their results, so that memory is bounded. Close
    the iterator to cancel requests that have not started.
    """
    return map_in_threads(request, items, THREADS, WAITING if n_waiting is None else n_waiting)
