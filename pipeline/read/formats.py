"""Formats and compressions of input files, by their names, and opening them as streams."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Final, Literal

import pyarrow as pa

from common.errors import UserError
from common.files import is_broken_link
from common.remote import BUFFER, one_line, open_file, store_errors
from common.tar import TarError
from pipeline.read.json_document import JsonDamageError, MissingListError
from pipeline.read.lines import BlankLinesError
from pipeline.read.streams import COMPRESSIONS, DAMAGE, Stream, TranscodedSource, is_utf8

Format = Literal["parquet", "jsonl", "json", "csv", "tsv", "tar", "folder"]
SUFFIXES: Final[dict[str, Format]] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tar": "tar",
    ".tgz": "tar",
}
KNOWN: Final = f"{', '.join(SUFFIXES)} (all but .parquet also in {', '.join(COMPRESSIONS)})"
UNREADABLE: Final[tuple[type[Exception], ...]] = (
    *DAMAGE,
    BlankLinesError,
    JsonDamageError,
    TarError,
    pa.ArrowException,
    UnicodeDecodeError,
    csv.Error,
)
"""Exceptions of the parsers for a damaged file."""


def format_of(path: str) -> Format | None:
    """The format by the suffix of a file name, None if unknown; a folder of images ends with a slash."""
    if path.endswith("/"):
        return "folder"
    name = path.lower()
    compression = "" if name.endswith(".tgz") else compression_of(name)
    format_ = next((kind for suffix, kind in SUFFIXES.items() if name.removesuffix(compression).endswith(suffix)), None)
    return None if compression and format_ == "parquet" else format_


def compression_of(path: str) -> str:
    """The key of COMPRESSIONS that a file name ends with, "" if it is not compressed."""
    name = path.lower()
    if name.endswith(".tgz"):
        return ".gz"
    return next((suffix for suffix in COMPRESSIONS if name.endswith(suffix)), "")


class DamagedFileError(UserError):
    """An input file whose content is not of its format, from some byte on."""


@contextmanager
def open_input(path: str, rows: str = "", encoding: str = "utf-8", headers: bool = False) -> Iterator[IO[bytes]]:
    """Open a file as decompressed bytes, and text in UTF-8. Raises UserError like `input_errors`.

    `headers`: only the headers of a tar are read, and large members of a remote one that is not compressed are skipped.
    """
    compression = compression_of(path)
    with input_errors(path, rows), open_file(path, headers=headers and not compression) as file:
        if compression:
            file = io.BufferedReader(Stream(file, COMPRESSIONS[compression]), BUFFER)
        if not is_utf8(encoding) and format_of(path) not in ("parquet", "tar"):
            file = io.BufferedReader(Stream(file, partial(TranscodedSource, encoding=encoding)), BUFFER)
        yield file


@contextmanager
def input_errors(path: str, rows: str = "") -> Iterator[None]:
    """Convert the errors of reading a file to UserError, which names it.

    `rows` names the rows to read, for the message. The error is a DamagedFileError if the file can be read, but not parsed.
    """
    try:
        yield
    except MissingListError as error:
        raise UserError(f"input file {path}: {error}") from error
    except store_errors(*UNREADABLE) as error:
        is_broken = is_broken_link(path)
        kind = DamagedFileError if is_broken or isinstance(error, UNREADABLE) else UserError
        reason = "it is a link to a file that does not exist, or to itself" if is_broken else one_line(error)
        fix = "replace the file, or remove it from the input"
        raise kind(f"cannot read {rows}input file {path}: {reason}; {fix}") from error
