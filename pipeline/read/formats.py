"""Reading of each input format as a stream of records; no file is ever completely in memory."""

import csv
import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Final, Literal

import pyarrow as pa

from common.errors import UserError
from common.remote import one_line, open_file, store_errors
from pipeline.read.parquet import TextColumns, parquet_records
from pipeline.read.types import BadRecord, Piece, Record
from schemas.files import GRIT_CAPTION, GRIT_JSON

Format = Literal["parquet", "jsonl", "csv", "tsv", "tar"]
SUFFIXES: Final[dict[str, Format]] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tar": "tar",
}
IMAGE_SUFFIXES: Final = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
UNREADABLE: Final[tuple[type[Exception], ...]] = (
    EOFError,
    zlib.error,
    tarfile.TarError,
    pa.ArrowException,
    UnicodeDecodeError,
    csv.Error,
)
"""Exceptions of the parsers for a damaged file."""
IMAGE: Final = "__image__"
"""Key of the encoded image in a record of a tar; a column of the input is unlikely to have this name."""


@dataclass(frozen=True)
class RawRow:
    """A row before parsing: its position (byte and line) and the input of the format's parser."""

    offset: int
    line: int
    payload: Any


def format_of(path: str) -> Format | None:
    """The format by the suffix of a file name, None if unknown. Text formats may be compressed (.gz)."""
    name = path.lower()
    is_compressed = name.endswith(".gz")
    for suffix, format_ in SUFFIXES.items():
        if name.removesuffix(".gz").endswith(suffix) and not (is_compressed and format_ in ("parquet", "tar")):
            return format_
    return None


@contextmanager
def open_input(path: str) -> Iterator[IO[bytes]]:
    """Open a file as decompressed bytes. Raises UserError, naming the file, if opening or reading it fails."""
    try:
        with open_file(path) as file:
            if not path.lower().endswith(".gz"):
                yield file
                return
            with gzip.open(file) as decompressed:
                yield decompressed  # type: ignore[misc]  # a GzipFile has the methods of IO[bytes]
    except store_errors(*UNREADABLE) as error:
        fix = "replace the file, or remove it from the input"
        raise UserError(f"cannot read input file {path}: {one_line(error)}; {fix}") from error


def raw_rows(format_: Format, file: IO[bytes], offset: int = 0, line: int = 1) -> Iterator[RawRow]:
    """Find the rows of a text file or tar from byte `offset`, without parsing them; only the headers of a tar are read.

    `line` is the line number at `offset`.
    """
    file.seek(offset)
    match format_:
        case "jsonl":
            return _lines(file, offset, line)
        case "csv" | "tsv":
            return _csv_rows(file, _delimiter(format_), offset, line)
        case _:
            return _samples(file)


def read_records(piece: Piece, text_columns: TextColumns) -> Iterator[tuple[int, Record | BadRecord]]:
    """Read the rows of a piece as (line, record); line is 0 for formats without lines.

    Binary columns of a parquet file are skipped, except `text_columns`: some writers store text in binary columns.
    Raises UserError if the file cannot be read.
    """
    format_ = format_of(piece.path)
    assert format_ is not None, "plan_shards uses only files of known formats"
    with open_input(piece.path) as file:
        if format_ == "parquet":
            yield from ((0, record) for record in parquet_records(file, piece.first_row, piece.n_rows, text_columns))
            return
        header = csv_header(file, format_) if format_ in ("csv", "tsv") else []
        for raw in islice(raw_rows(format_, file, piece.offset, piece.line), piece.n_rows):
            yield raw.line, _parse(format_, raw.payload, header, file)


def column_names(file: IO[bytes], format_: Format) -> list[str] | None:
    """The column names of a text file; of JSONL those of the first valid row. None for tars and empty files.

    Moves the position in a CSV file to the end of its header.
    """
    match format_:
        case "csv" | "tsv":
            return csv_header(file, format_) or None
        case "jsonl":
            found = (_parse_json(raw.payload) for raw in islice(_lines(file, 0, 1), 1000))
            return next((list(record) for record in found if not isinstance(record, BadRecord)), None)
        case _:
            return None


def csv_header(file: IO[bytes], format_: Format) -> list[str]:
    """Read the column names in the first line."""
    first = file.readline().decode("utf-8-sig")
    return next(csv.reader(io.StringIO(first), delimiter=_delimiter(format_)), [])


def _delimiter(format_: Format) -> str:
    return "\t" if format_ == "tsv" else ","


def _lines(file: IO[bytes], offset: int, line: int) -> Iterator[RawRow]:
    for text in file:
        if not text.isspace():
            yield RawRow(offset, line, text)
        offset += len(text)
        line += 1


def _csv_rows(file: IO[bytes], delimiter: str, offset: int, line: int) -> Iterator[RawRow]:
    """Rows of a CSV file, which may span lines. Invalid UTF-8 becomes surrogates; the stage drops such rows."""

    def lines() -> Iterator[str]:
        nonlocal offset, line
        for text in file:
            offset += len(text)
            line += 1
            yield text.decode("utf-8", errors="surrogateescape")

    reader = csv.reader(lines(), delimiter=delimiter)
    while True:
        start = offset, line
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield RawRow(*start, BadRecord(str(error)))
            continue
        if values:
            yield RawRow(*start, values)


def _samples(file: IO[bytes]) -> Iterator[RawRow]:
    """Samples of a tar: consecutive files with the same name up to the first dot, like in WebDataset."""
    key, start, members = "", 0, dict[str, tarfile.TarInfo]()
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # otherwise every header stays in memory
            if not member.isreg():
                continue
            folder, _, name = member.name.rpartition("/")
            stem, _, suffix = name.partition(".")
            if members and f"{folder}/{stem}" != key:
                yield RawRow(start, 0, members)
                members = {}
            if not members:
                key, start = f"{folder}/{stem}", member.offset
            members[suffix.lower()] = member
        if members:
            yield RawRow(start, 0, members)


def _parse(format_: Format, payload: Any, header: list[str], file: IO[bytes]) -> Record | BadRecord:
    if isinstance(payload, BadRecord):
        return payload
    match format_:
        case "jsonl":
            return _parse_json(payload)
        case "csv" | "tsv":
            if len(payload) != len(header):
                return BadRecord(f"{len(payload)} fields where the header has {len(header)}")
            return dict(zip(header, payload, strict=True))
        case _:
            return _parse_sample(payload, file)


def _parse_json(text: bytes) -> Record | BadRecord:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return BadRecord(f"not valid JSON: {error}")
    return record if isinstance(record, dict) else BadRecord(f"a JSON {type(record).__name__}, not an object")


def _parse_sample(members: dict[str, tarfile.TarInfo], file: IO[bytes]) -> Record | BadRecord:
    """The record of a tar sample: the columns of its json, its image, and its txt if the json has no caption."""

    def content(member: tarfile.TarInfo) -> bytes:
        file.seek(member.offset_data)
        return file.read(member.size)

    record: Record = {}
    if GRIT_JSON in members:
        parsed = _parse_json(content(members[GRIT_JSON]))
        if isinstance(parsed, BadRecord):
            return parsed
        record = parsed
    if GRIT_CAPTION in members and record.get("caption") is None:
        try:
            record["caption"] = content(members[GRIT_CAPTION]).decode()
        except UnicodeDecodeError as error:
            return BadRecord(f"the caption is not UTF-8: {error.reason}")
    image = next((members[suffix] for suffix in IMAGE_SUFFIXES if suffix in members), None)
    return {**record, IMAGE: content(image)} if image else record
