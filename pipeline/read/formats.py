"""Reading of each input format as a stream of records; no file is ever completely in memory."""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import IO, Any, Final, Literal, TypeVar

import pyarrow as pa

from common.errors import UserError
from common.files import is_broken_link
from common.remote import BUFFER, one_line, open_file, store_errors
from common.tar import TarError
from pipeline.read.config import ReadConfig
from pipeline.read.isolate import RowFault, isolated
from pipeline.read.json_rows import parse_json
from pipeline.read.lines import BlankLinesError, csv_problem, csv_rows, jsonl_rows
from pipeline.read.parquet import TextColumns, parquet_rows
from pipeline.read.samples import parse_sample, tar_rows
from pipeline.read.types import BadRecord, Load, Piece, RawRow, Record

Result = TypeVar("Result")

Format = Literal["parquet", "jsonl", "csv", "tsv", "tar"]
SUFFIXES: Final[dict[str, Format]] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tar": "tar",
}
UNREADABLE: Final[tuple[type[Exception], ...]] = (
    EOFError,
    gzip.BadGzipFile,
    BlankLinesError,
    zlib.error,
    TarError,
    pa.ArrowException,
    UnicodeDecodeError,
    csv.Error,
)
"""Exceptions of the parsers for a damaged file."""


def format_of(path: str) -> Format | None:
    """The format by the suffix of a file name, None if unknown. Text formats may be compressed (.gz)."""
    name = path.lower()
    is_compressed = name.endswith(".gz")
    for suffix, format_ in SUFFIXES.items():
        if name.removesuffix(".gz").endswith(suffix) and not (is_compressed and format_ in ("parquet", "tar")):
            return format_
    return None


class Decompressed(io.RawIOBase):
    """The content of a gzip file, without losing what precedes a damage: a read returns what there is, as of a socket."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._gzip = gzip.GzipFile(fileobj=file)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._gzip.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._gzip.seek(offset, whence)

    def tell(self) -> int:
        return self._gzip.tell()


class DamagedFileError(UserError):
    """An input file whose content is not of its format, from some byte on."""


@contextmanager
def open_input(path: str, rows: str = "") -> Iterator[IO[bytes]]:
    """Open a file as decompressed bytes. Raises UserError, naming the file, if opening or reading it fails.

    `rows` names the rows to read, for the message. The error is a DamagedFileError if the file can be read, but not parsed.
    """
    try:
        with open_file(path) as file:
            if not path.lower().endswith(".gz"):
                yield file
                return
            with io.BufferedReader(Decompressed(file), BUFFER) as decompressed:
                yield decompressed
    except store_errors(*UNREADABLE) as error:
        is_broken = is_broken_link(path)
        kind = DamagedFileError if is_broken or isinstance(error, UNREADABLE) else UserError
        reason = "it is a link to a file that does not exist, or to itself" if is_broken else one_line(error)
        fix = "replace the file, or remove it from the input"
        raise kind(f"cannot read {rows}input file {path}: {reason}; {fix}") from error


def raw_rows(
    format_: Format, file: IO[bytes], config: ReadConfig, offset: int = 0, line: int = 1, n_columns: int = 0
) -> Iterator[RawRow]:
    """Find the rows of a text file or tar from byte `offset`, without parsing them; only the headers of a tar are read.

    `line` is the line number at `offset`, `n_columns` the number of columns of a CSV file.
    """
    match format_:
        case "jsonl":
            file.seek(offset)
            return jsonl_rows(file, offset, line, config)
        case "csv" | "tsv":
            file.seek(offset)
            return csv_rows(file, _delimiter(format_), offset, line, n_columns, config)
        case _:
            return tar_rows(file, offset)


def read_rows(
    piece: Piece,
    text_columns: TextColumns,
    config: ReadConfig,
    convert: Callable[[Record | BadRecord], Result],
    is_wanted: Callable[[int], bool] = lambda _: True,
) -> Iterator[tuple[int, Result | RowFault | None]]:
    """Read the rows of a piece as (line, converted record); line is 0 for formats without lines.

    A row whose parser or conversion raises becomes a RowFault; a row whose index in the file is not wanted is neither
    parsed nor converted, and becomes None. Binary columns of a parquet file are skipped, except `text_columns`: some
    writers store text in binary columns. Raises UserError if the file cannot be read.
    """
    last_row = piece.first_row + piece.n_rows - 1
    with open_input(piece.path, f"rows {piece.first_row} to {last_row} of ") as file:
        for i, (line, load) in enumerate(_loads(piece, file, text_columns, config, is_wanted), piece.first_row):
            yield line, isolated(partial(_converted, convert, load)) if load and is_wanted(i) else None


def _converted(convert: Callable[[Record | BadRecord], Result], load: Load) -> Result:
    return convert(load())


def _loads(
    piece: Piece, file: IO[bytes], text_columns: TextColumns, config: ReadConfig, is_wanted: Callable[[int], bool]
) -> Iterator[tuple[int, Load | None]]:
    format_ = format_of(piece.path)
    assert format_ is not None, "plan_shards uses only files of known formats"
    if format_ == "parquet":
        loads = parquet_rows(file, piece.first_row, piece.n_rows, text_columns, config, is_wanted)
        yield from ((0, load) for load in loads)
        return
    header = csv_header(file, format_, config) if format_ in ("csv", "tsv") else []
    rows = raw_rows(format_, file, config, piece.offset, piece.line, len(header))
    for raw in islice(rows, piece.n_rows):
        yield raw.line, partial(_parse, format_, raw.payload, header, file, config)


def column_names(file: IO[bytes], format_: Format, config: ReadConfig) -> list[str] | None:
    """The column names of a text file; of JSONL those of the first valid row. None for tars and empty files.

    Moves the position in a CSV file to the end of its header.
    """
    match format_:
        case "csv" | "tsv":
            return csv_header(file, format_, config) or None
        case "jsonl":
            found = (_parse(format_, raw.payload, [], file, config) for raw in jsonl_rows(file, 0, 1, config))
            return next((list(record) for record in islice(found, 1000) if not isinstance(record, BadRecord)), None)
        case _:
            return None


def csv_header(file: IO[bytes], format_: Format, config: ReadConfig) -> list[str]:
    """Read the column names in the first line that is not blank; an empty list for a file without one.

    Raises csv.Error if the line, with the blank ones before it, is too long.
    """
    text, n_bytes = "", 0
    while not text.strip("\r\n") and (line := file.readline(config.max_row_bytes + 1)):
        n_bytes += len(line)
        if n_bytes > config.max_row_bytes:
            raise csv.Error(f"the header has more than read.max_row_bytes={config.max_row_bytes} bytes")
        text = line.decode("utf-8-sig")
    try:
        return next(csv.reader(io.StringIO(text), delimiter=_delimiter(format_)), [])
    except csv.Error as error:
        raise csv.Error(f"line 1: {csv_problem(error)}") from error


def _delimiter(format_: Format) -> str:
    return "\t" if format_ == "tsv" else ","


def _parse(format_: Format, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
    if isinstance(payload, BadRecord):
        return payload
    match format_:
        case "jsonl":
            return parse_json(payload)
        case "csv" | "tsv":
            if len(payload) != len(header):
                return BadRecord(f"{len(payload)} fields where the header has {len(header)}")
            return dict(zip(header, payload, strict=True))
        case _:
            return parse_sample(payload, file, config)
