"""Folders and files by path or fsspec URL, and what their stores answer."""

import io
import sys
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Final, TypeVar, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations
from fsspec.utils import get_protocol

from common.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

BUFFER: Final = 1 << 20  # bytes; without it a remote file copies its whole block, 50 MB on S3, for every line
THREADS: Final = 16  # requests to a store at a time
FOREIGN: Final = {"botocore.exceptions": ("BotoCoreError", "ClientError"), "aiohttp": ("ClientError",)}
"""Module -> exceptions that fsspec lets through as they are. All else that it raises for a failed request is an OSError."""


def open_store(url: str, **options: Any) -> tuple[AbstractFileSystem, str]:
    """The file system of `url` and the path in it. Nothing is sent yet.

    Raises UserError for a protocol that fsspec does not know or lacks a package for, naming the package.
    """
    try:
        fs, path = url_to_fs(url, **options)
    except ImportError as error:
        package = known_implementations.get(get_protocol(url), {}).get("class", "").partition(".")[0]
        # Where the protocol is implemented in fsspec itself, its message already names the package that is missing.
        mend = f"; pip install '{package}'" if package not in ("", "fsspec") else ""
        raise UserError(f"{url}: {error}{mend}") from error
    except store_errors(ValueError) as error:
        raise UserError(f"{url}: {one_line(error)}") from error
    return fs, str(path)


def open_file(url: str) -> IO[bytes]:
    """A file opened for reading. Raises UserError as `open_store` does, and any of `store_errors` if it cannot be opened."""
    fs, path = open_store(url)
    file = fs.open(path, "rb")
    return cast(IO[bytes], file if isinstance(fs, LocalFileSystem) else io.BufferedReader(file, BUFFER))


def store_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """What to catch around requests to a store: `except store_errors() as error`. `others` are caught too.

    Pass ValueError where nothing but fsspec is called: so it reports an endpoint that is no URL. Packages that were not imported
    are left out, as they can have raised nothing; importing them here would take seconds.
    """
    modules = {name: sys.modules[name] for name in FOREIGN if name in sys.modules}
    foreign = [getattr(module, name) for module_name, module in modules.items() for name in FOREIGN[module_name]]
    return OSError, *foreign, *others


def one_line(error: BaseException) -> str:
    """The message of `error` without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def map_concurrently(request: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
    """`request(item)` for each item, in their order, several at a time: a remote store takes its time to answer each.

    Who has seen enough closes the iterator: requests that have not begun are then never made.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(request, items)
