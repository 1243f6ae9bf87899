"""Folders and files by path or fsspec URL, and what their stores answer."""

import io
import sys
from typing import IO, Any, Final, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations
from fsspec.utils import get_protocol

from common.errors import UserError

BUFFER: Final = 1 << 20  # bytes; without it a remote file copies its whole block, 50 MB on S3, for every line
FOREIGN: Final = {"botocore.exceptions": ("BotoCoreError", "ClientError"), "aiohttp": ("ClientError",)}
"""Exceptions of the packages below fsspec that it passes on as they are, by module; the others are OSErrors."""


def open_store(url: str, **options: Any) -> tuple[AbstractFileSystem, str]:
    """The file system of `url` and the path in it. Nothing is sent yet.

    Raises UserError for a protocol that fsspec does not know or lacks a package for, naming the package.
    """
    try:
        fs, path = url_to_fs(url, **options)
    except ImportError as error:
        package = known_implementations.get(get_protocol(url), {}).get("class", "").partition(".")[0]
        mend = f"; pip install '{package}'" if package not in ("", "fsspec") else ""  # fsspec's own name theirs
        raise UserError(f"{url}: {error}{mend}") from error
    except store_errors(ValueError) as error:
        raise UserError(f"{url}: {one_line(error)}") from error
    return fs, str(path)


def open_file(url: str) -> IO[bytes]:
    """A file to read, line by line too. Raises as `open_store` does, and `store_errors`."""
    fs, path = open_store(url)
    file = fs.open(path, "rb")
    return cast(IO[bytes], file if isinstance(fs, LocalFileSystem) else io.BufferedReader(file, BUFFER))


def store_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """For `except`: what a store may raise, and `others`. A package that was never imported raised nothing.

    Around calls of fsspec alone add ValueError: an endpoint that is no address.
    """
    modules = {name: sys.modules[name] for name in FOREIGN if name in sys.modules}
    foreign = [getattr(module, name) for module_name, module in modules.items() for name in FOREIGN[module_name]]
    return OSError, *foreign, *others


def one_line(error: BaseException) -> str:
    """The message of `error` without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
