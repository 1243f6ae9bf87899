"""Each input format as a stream of records with their places; none is ever held in memory whole."""

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
IMAGE: Final = "__image__"
"""Key of a record under which a tar's encoded image travels; no column has that name."""


@dataclass(frozen=True)
class Raw:
    """A row found but not parsed: where it starts, and what the format's parser needs."""

    offset: int
    line: int
    payload: Any


def format_of(path: str) -> Format | None:
    """Format by the file's name; text may be packed (.gz)."""
    name = path.lower()
    packed = name.endswith(".gz")
    for suffix, format_ in SUFFIXES.items():
        if name.removesuffix(".gz").endswith(suffix) and not (packed and format_ in ("parquet", "tar")):
            return format_
    return None


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """The file as unpacked bytes. Raises UserError, naming the file, if opening or reading it fails."""
    try:
        with open_file(path) as file:
            if not path.lower().endswith(".gz"):
                yield file
                return
            with gzip.open(file) as unpacked:
                yield unpacked  # type: ignore[misc]  # a GzipFile reads as any file
    except store_errors(*UNREADABLE) as error:
        mend = "replace the file or take it out of the input"
        raise UserError(f"cannot read input file {path}: {one_line(error)}; {mend}") from error


def raw_rows(format_: Format, file: IO[bytes], offset: int = 0, line: int = 1) -> Iterator[Raw]:
    """Rows of a text file or tar from `offset` on, cheaply: lines are counted, members are skipped over."""
    file.seek(offset)
    match format_:
        case "jsonl":
            return _lines(file, offset, line)
        case "csv" | "tsv":
            return _csv_rows(file, _delimiter(format_), offset, line)
        case _:
            return _samples(file)


def records(piece: Piece, text_columns: TextColumns) -> Iterator[tuple[int, Record | BadRecord]]:
    """(line, record) of each row of the piece; line 0 where the format has none.

    Of a parquet's columns of bytes only `text_columns` are read: old writers store text without saying that it is one.
    """
    format_ = format_of(piece.path)
    assert format_ is not None, "plan_shards takes known formats only"
    with opened(piece.path) as file:
        if format_ == "parquet":
            yield from ((0, record) for record in parquet_records(file, piece.first_row, piece.n_rows, text_columns))
            return
        header = csv_header(file, format_) if format_ in ("csv", "tsv") else []
        for raw in islice(raw_rows(format_, file, piece.offset, piece.line), piece.n_rows):
            yield raw.line, _parse(format_, raw.payload, header, file)


def columns(file: IO[bytes], format_: Format) -> list[str] | None:
    """Column names of a text file, of JSONL those of its first good row; None where there are none (tars, empty files).

    Leaves the file of a CSV behind its header.
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
    """The first line's names; leaves `file` behind it."""
    first = file.readline().decode("utf-8-sig")
    return next(csv.reader(io.StringIO(first), delimiter=_delimiter(format_)), [])


def _delimiter(format_: Format) -> str:
    return "\t" if format_ == "tsv" else ","


def _lines(file: IO[bytes], offset: int, line: int) -> Iterator[Raw]:
    for text in file:
        if not text.isspace():
            yield Raw(offset, line, text)
        offset += len(text)
        line += 1


def _csv_rows(file: IO[bytes], delimiter: str, offset: int, line: int) -> Iterator[Raw]:
    """Rows of a CSV; one may span several lines. Bytes that are no UTF-8 become surrogates, which no row may hold."""

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
            yield Raw(*start, BadRecord(str(error)))
            continue
        if values:
            yield Raw(*start, values)


def _samples(file: IO[bytes]) -> Iterator[Raw]:
    """Samples of a tar: neighbouring files whose names agree up to the first dot, as WebDataset groups them."""
    key, start, members = "", 0, dict[str, tarfile.TarInfo]()
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # else every header ever seen stays in memory
            if not member.isreg():
                continue
            folder, _, name = member.name.rpartition("/")
            stem, _, suffix = name.partition(".")
            if members and f"{folder}/{stem}" != key:
                yield Raw(start, 0, members)
                members = {}
            if not members:
                key, start = f"{folder}/{stem}", member.offset
            members[suffix.lower()] = member
        if members:
            yield Raw(start, 0, members)


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
    """json gives the columns, txt the caption if json has none, and the image its bytes."""

    def content(member: tarfile.TarInfo) -> bytes:
        file.seek(member.offset_data)
        return file.read(member.size)

    record: Record = {}
    if "json" in members:
        parsed = _parse_json(content(members["json"]))
        if isinstance(parsed, BadRecord):
            return parsed
        record = parsed
    if "txt" in members and record.get("caption") is None:
        try:
            record["caption"] = content(members["txt"]).decode()
        except UnicodeDecodeError as error:
            return BadRecord(f"the caption is not UTF-8: {error.reason}")
    image = next((members[suffix] for suffix in IMAGE_SUFFIXES if suffix in members), None)
    return {**record, IMAGE: content(image)} if image else record
