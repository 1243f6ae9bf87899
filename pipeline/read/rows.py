"""Reading of each input format as a stream of records; no file is ever completely in memory."""

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import IO, Any, TypeVar

from pipeline.read.config import ReadConfig
from pipeline.read.folders import folder_rows
from pipeline.read.formats import Format, format_of, input_errors, open_input
from pipeline.read.isolate import RowFault, isolated
from pipeline.read.json_document import BOM, MissingListError, column_lists, join_columns, json_rows
from pipeline.read.json_rows import parse_json
from pipeline.read.lines import csv_problem, csv_rows, jsonl_rows
from pipeline.read.parquet import parquet_rows
from pipeline.read.samples import parse_sample, tar_rows
from pipeline.read.types import BadRecord, Load, Piece, RawRow, Record

Result = TypeVar("Result")


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
        case "json":
            return json_rows(file, offset, config)
        case "csv" | "tsv":
            file.seek(offset)
            return csv_rows(file, dialect(format_, config), offset, line, n_columns, config)
        case _:
            return tar_rows(file, offset, config)


def read_rows(
    piece: Piece,
    config: ReadConfig,
    convert: Callable[[Record | BadRecord], Result],
    is_wanted: Callable[[int], bool] = lambda _: True,
) -> Iterator[tuple[int, Result | RowFault | None]]:
    """Read the rows of a piece as (line, converted record); line is 0 for formats without lines.

    A row whose parser or conversion raises becomes a RowFault; a row whose index in the file is not wanted is neither
    parsed nor converted, and becomes None. Raises UserError if the file cannot be read.
    """
    if format_of(piece.path) == "folder":
        for i, load_image in enumerate(folder_rows(piece, config, is_wanted), piece.first_row):
            yield 0, isolated(partial(_converted, convert, load_image)) if is_wanted(i) else None
        return
    with _opened(piece, config) as file:
        for i, (line, load) in enumerate(_loads(piece, file, config, is_wanted), piece.first_row):
            yield line, isolated(partial(_converted, convert, load)) if load and is_wanted(i) else None


@contextmanager
def _opened(piece: Piece, config: ReadConfig) -> Iterator[IO[bytes] | None]:
    """Open the file of a piece, and convert errors of reading it.

    Yields None for parquet, whose files stay open between pieces.
    """
    rows = f"rows {piece.first_row} to {piece.first_row + piece.n_rows - 1} of "
    if format_of(piece.path) == "parquet":
        with input_errors(piece.path, rows):
            yield None
        return
    with open_input(piece.path, rows, config.encoding) as file:
        yield file


def _converted(convert: Callable[[Record | BadRecord], Result], load: Load) -> Result:
    return convert(load())


def _loads(
    piece: Piece, file: IO[bytes] | None, config: ReadConfig, is_wanted: Callable[[int], bool]
) -> Iterator[tuple[int, Load | None]]:
    format_ = format_of(piece.path)
    assert format_ is not None, "plan_shards uses only files of known formats"
    if file is None:
        yield from ((0, load) for load in parquet_rows(piece, config, is_wanted))
        return
    header = csv_header(file, format_, config) if format_ in ("csv", "tsv") else []
    rows = raw_rows(format_, file, config, piece.offset, piece.line, len(header))
    for raw in islice(rows, piece.n_rows):
        yield raw.line, partial(_parse, format_, raw.payload, header, file, config)


def column_names(file: IO[bytes], format_: Format, config: ReadConfig, n_rows: int = 1) -> list[str] | None:
    """The column names of a text file; of JSON those of the first `n_rows` valid rows. None for tars and empty files.

    Moves the position in a CSV file to the end of its header. Raises MissingListError for a .json file whose rows are
    not where the settings say.
    """
    match format_:
        case "csv" | "tsv":
            return csv_header(file, format_, config) or None
        case "json" if config.json_layout == "columns":
            return list(column_lists(file, config))
        case "jsonl" | "json":
            raws = islice(raw_rows(format_, file, config), max(1000, n_rows))
            found = (_parse(format_, raw.payload, [], file, config) for raw in raws)
            first = next(found, None)
            if format_ == "json" and isinstance(first, BadRecord) and config.json_key is None:
                fix = "if the rows are in a list within an object, set read.json_key=NAME"
                raise MissingListError(f"its first value is no row ({first.message}); {fix}")
            records = islice((x for x in chain([first], found) if x and not isinstance(x, BadRecord)), n_rows)
            return list(dict.fromkeys(name for record in records for name in record)) or None
        case _:
            return None


def csv_header(file: IO[bytes], format_: Format, config: ReadConfig) -> list[str]:
    """Read the column names in the first line that is not blank; an empty list for a file without one.

    They are `read.columns` if it is set; then only a byte order mark is read. Raises csv.Error if the line, with the
    blank ones before it, is too long.
    """
    if config.columns:
        if file.read(len(BOM)) != BOM:
            file.seek(0)
        return list(config.columns)
    text, n_bytes = "", 0
    while not text.strip("\r\n") and (line := file.readline(config.max_row_bytes + 1)):
        n_bytes += len(line)
        if n_bytes > config.max_row_bytes:
            raise csv.Error(f"the header has more than read.max_row_bytes={config.max_row_bytes} bytes")
        text = line.decode("utf-8-sig")
    try:
        return next(csv.reader(io.StringIO(text), **dialect(format_, config)), [])
    except csv.Error as error:
        raise csv.Error(f"line 1: {csv_problem(error)}") from error


def dialect(format_: Format, config: ReadConfig) -> dict[str, Any]:
    """Return the options of csv.reader for a file."""
    delimiter = config.delimiter or ("\t" if format_ == "tsv" else ",")
    return {"delimiter": delimiter, "quoting": csv.QUOTE_MINIMAL if config.quotes else csv.QUOTE_NONE}


def _parse(format_: Format, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
    if isinstance(payload, BadRecord):
        return payload
    match format_:
        case "json" if config.json_layout == "columns":
            return join_columns(payload)
        case "jsonl" | "json":
            return parse_json(payload)
        case "csv" | "tsv":
            if len(payload) != len(header):
                return BadRecord(f"{len(payload)} fields where the header has {len(header)}")
            return dict(zip(header, payload, strict=True))
        case _:
            return parse_sample(payload, file, config)
