"""Formats of text, in bounded memory: JSON lines, CSV and TSV, of which every line ends in one row; and JSON.

The values of a JSON file are found by their brackets and quotes, and parsed one by one. A long or malformed line or
value costs only its row.
"""

import csv
import io
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import IO, Any, ClassVar, Final, NamedTuple

from pipeline.read.config import ReadConfig
from pipeline.read.nested import END
from pipeline.read.rows import with_named
from pipeline.read.streams import DAMAGE, DamageError, LayoutError, is_stream
from pipeline.read.types import BadRecord, ColumnNames, RawRow, Record, Sequential

# Parsing of untrusted JSON objects.

SAMPLE_ROWS: Final = 1000
"""Rows in which the columns of `read.where` are looked for, and in which a valid row must be."""


UNICODE: Final = {"1010": "utf-16-le", "0101": "utf-16-be", "1000": "utf-32-le", "0001": "utf-32-be"}
"""Which of the first four bytes of ASCII characters are not zero -> the encoding."""
NULS: Final = "it has NUL bytes: space that was reserved and never written, or text in UTF-16; see read.encoding"


def wide_encoding(head: bytes) -> str:
    """Return the name of UTF-16 or UTF-32 by the first four bytes of a text, "" for another encoding.

    >>> wide_encoding("\ufeffurl".encode("utf-16-be")), wide_encoding(b'{"ur')
    ('utf-16', '')
    """
    if head in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        return "utf-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return UNICODE.get("".join(str(int(byte > 0)) for byte in head), "")


def decode(content: bytes, encoding: str = "utf-8", named: str = "") -> str | BadRecord:
    """Decode a text strictly, without a byte order mark; NUL bytes may be at its end only.

    `named`: the encoding of the file, if its bytes were converted to `encoding`.
    """
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except UnicodeError:
        wide = wide_encoding(content[:4])
        return BadRecord(f"not valid {named or encoding}{wide and f', but {wide}'}; see read.encoding")
    is_hollow = "\0" in text and (not text.strip("\0") or "\0" in text.rstrip("\0"))
    return BadRecord(NULS) if is_hollow else text


def parse_json(content: bytes, encoding: str = "utf-8", named: str = "") -> Record | BadRecord:
    """Parse a JSON object; anything else becomes a BadRecord. The encoding is as in `decode`."""
    text = decode(content, encoding, named)
    if isinstance(text, BadRecord):
        return text
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = LONE_CR if "\r" in text.strip() else f"not valid JSON: {error}"
        return BadRecord(NULS if "\0" in text else problem)
    return record if isinstance(record, dict) else BadRecord(f"a JSON {type(record).__name__}, not an object")


class JsonRows(Sequential):
    """A format whose rows are JSON objects, each with columns of its own."""

    is_text = True

    def columns(self, file: IO[bytes], config: ReadConfig) -> ColumnNames | None:
        """Return the columns of the first valid row with its values, or of more rows if settings may name others."""
        records = (self.load(raw.payload, [], file, config) for raw in self.find(file, 0, 1, 0, config))
        sample = islice(records, SAMPLE_ROWS)
        first = next(sample, None)
        if isinstance(first, BadRecord):
            self.refuse_first(first, config)
        valid = (record for record in chain([first], sample) if record and not isinstance(record, BadRecord))
        found: Record = {}
        for record in islice(valid, self._n_rows(config)):
            found |= {name: value for name, value in with_named(record, config).items() if found.get(name) is None}
        return found or None

    def refuse_first(self, first: BadRecord, config: ReadConfig) -> None:
        """Raise LayoutError if a first value that is no row tells that the rows are elsewhere."""

    def _n_rows(self, config: ReadConfig) -> int:
        return SAMPLE_ROWS if config.selection or any(map(END.search, config.named_columns)) else 1

    def parse(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        return parse_json(payload, named=config.encoding)


# Lines, JSON lines, CSV and TSV.

SKIP_BYTES: Final = 1 << 20
BLANK_LINES: Final = 16
"""Blank lines in a row after which the next ones are skipped in blocks, which is slower for a few lines."""
WHITE_SPACE: Final = b" \t\n\r\v\f"
LINE_ENDS: Final = b"\r\n"


class Line(NamedTuple):
    """A line of a file."""

    offset: int  # of its first byte in the file
    number: int
    n_bytes: int
    text: bytes | None  # None for a line longer than `read.max_row_bytes`

    def too_long(self, config: ReadConfig) -> BadRecord:
        return BadRecord(f"the line has {self.n_bytes} bytes, more than the limit of {config.max_row_bytes}")


class UnclosedQuoteError(Exception):
    """A quoted field does not end within the limits of a row."""


class Lines:
    """The lines of a file from its position on. Lines that are too long are skipped, never held in memory."""

    def __init__(self, file: IO[bytes], offset: int, number: int, config: ReadConfig) -> None:
        self._file, self._max_bytes = file, config.max_row_bytes
        self.offset, self.number = offset, number
        self._run_lines = self._run_bytes = 0  # of blank lines in a row
        self._run_end = -1  # number of the line after them

    def next(self) -> Line | None:
        """Return the next line; None at the end of the file."""
        read_line, max_bytes, n_bytes = self._file.readline, self._max_bytes, 0
        text: bytes | None = read_line(max_bytes + 1)
        if not text:
            return None
        n_bytes = len(text)
        if n_bytes > max_bytes and not text.endswith(b"\n"):
            text = b"\0" if text.startswith(b"\0") else None  # reserved space: one NUL tells as much
            while rest := read_line(SKIP_BYTES):
                n_bytes += len(rest)
                if rest.endswith(b"\n"):
                    break
        line = Line(self.offset, self.number, n_bytes, text)
        self.offset += n_bytes
        self.number += 1
        return line

    def skip_blank(self, line: Line, blanks: bytes) -> None:
        """Count a blank line, the last that was read; skip those after it in blocks if there are many.

        Lines of the characters `blanks` are blank. Raises DamageError for a run of more than `max_row_bytes`.
        """
        if line.number != self._run_end:
            self._run_lines = self._run_bytes = 0
        self._run_lines, self._run_bytes = self._run_lines + 1, self._run_bytes + line.n_bytes
        while self._run_lines >= BLANK_LINES and self._run_bytes <= self._max_bytes:
            block: bytes = self._file.peek()  # type: ignore[attr-defined]
            end = block.rfind(b"\n", 0, len(block) - len(block.lstrip(blanks))) + 1
            if not end:  # a line that is not blank, or continues in the next block
                break
            self._file.read(end)
            self.offset, self._run_bytes = self.offset + end, self._run_bytes + end
            self.number += block.count(b"\n", 0, end)
        if self._run_bytes > self._max_bytes:
            raise DamageError(f"more than {self._max_bytes} bytes of blank lines before line {self.number}")
        self._run_end = self.number


class JsonLines(JsonRows):
    """A JSON object in each line that is not blank."""

    name = "jsonl"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")

    def refuse_first(self, first: BadRecord, config: ReadConfig) -> None:
        if first.message == LONE_CR:  # the file is one line
            raise LayoutError(first.message)

    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        file.seek(offset)
        lines = Lines(file, offset, line, config)
        while found := lines.next():
            if found.text is None:
                yield RawRow(found.offset, found.number, found.too_long(config))
            elif found.text.isspace():
                lines.skip_blank(found, WHITE_SPACE)
            else:
                yield RawRow(found.offset, found.number, found.text)


csv.field_size_limit(ReadConfig.max_row_bytes)  # of all readers; 131,072 characters by default


class Escapes:
    r"""The escapes of the lines of a CSV file as csv.reader wants them, which drops each whatever follows.

    One is before a quote, another one and a line end, and without quotes before a delimiter; elsewhere it is a character. A
    field `\N` is empty.
    """

    def __init__(self, dialect: Mapping[str, Any]) -> None:
        self.escape, self.delimiter = dialect.get("escapechar") or "", dialect["delimiter"]
        self.has_quotes, self.is_quoted = dialect.get("quoting") != csv.QUOTE_NONE, False
        self.token = re.compile(f'{re.escape(self.escape)}.|"', re.DOTALL) if self.escape else None

    def convert(self, line: str, is_first: bool) -> str:
        """Return a line for csv.reader; `is_first`: it begins a row."""
        self.is_quoted = self.is_quoted and not is_first
        return self.token.sub(self._convert, line) if self.token else line

    def _convert(self, found: re.Match[str]) -> str:
        if (token := found[0]) == '"':
            self.is_quoted = self.has_quotes and not self.is_quoted
            return token
        ends = {found.string[found.start() - 1 : found.start()], found.string[found.end() : found.end() + 1]}
        if token == r"\N" and not self.is_quoted and ends <= {"", self.delimiter, "\r", "\n"}:
            return ""
        is_escape = token[1] in f'"\r\n{self.escape}' or (token[1] == self.delimiter and not self.is_quoted)
        return token if is_escape else self.escape + token


class Csv(Sequential):
    """Fields between commas or other delimiters; a field in quotes may have line breaks."""

    name = "csv"
    suffixes: ClassVar[tuple[str, ...]] = (".csv",)
    is_text = True
    is_untyped = True
    delimiter = ","

    def header(self, file: IO[bytes], config: ReadConfig) -> list[str]:
        """Read the column names in the first line that is not blank; an empty list for a file without one.

        They are `read.columns` if it is set; then only a byte order mark is read. Raises csv.Error if the line, with
        the blank ones before it, is too long.
        """
        if config.columns:
            if file.read(len(BOM)) != BOM:
                file.seek(0)
            return list(config.columns)
        text, n_bytes = "", 0
        while not text.strip("\r\n") and (line := file.readline(config.max_row_bytes + 1)):
            n_bytes += len(line)
            if n_bytes > config.max_row_bytes:
                raise csv.Error(f"the header has more than the limit of {config.max_row_bytes} bytes")
            text = line.decode("utf-8-sig")
        dialect = self.dialect(config)
        try:
            return next(csv.reader(io.StringIO(Escapes(dialect).convert(text, True)), **dialect, strict=True), [])
        except csv.Error as error:
            raise csv.Error(f"line 1: {csv_problem(error)}") from error

    def columns(self, file: IO[bytes], config: ReadConfig) -> ColumnNames | None:
        names = self.header(file, config)
        first: Any = next((raw.payload for raw in self.find(file, 0, 1, 0, config)), None)
        is_row = isinstance(first, list) and len(first) == len(names) == len({*names})
        return dict(zip(names, first, strict=True)) if is_row else names or None

    def dialect(self, config: ReadConfig) -> dict[str, Any]:
        """Return the options of csv.reader."""
        quoting = csv.QUOTE_MINIMAL if config.quotes else csv.QUOTE_NONE
        delimiter = (config.delimiter or self.delimiter).replace(r"\t", "\t")
        return {"delimiter": delimiter, "quoting": quoting, "escapechar": config.escape}

    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        if not offset:
            file.seek(0)
            n_columns, offset = len(self.header(file, config)), file.tell()
            file.seek(0)
            line = 1 + file.read(offset).count(b"\n")  # blank lines may precede the header
        file.seek(offset)
        return csv_rows(file, self.dialect(config), offset, line, n_columns, config)

    def parse(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        if any("\0" in value for value in payload):
            return BadRecord(NULS)
        if len(payload) != len(header):
            return BadRecord(f"{len(payload)} fields where the header has {len(header)}")
        return dict(zip(header, payload, strict=True))


class Tsv(Csv):
    """Fields between tabs."""

    name = "tsv"
    suffixes = (".tsv",)
    delimiter = "\t"


def csv_rows(
    file: IO[bytes], dialect: dict[str, Any], offset: int, number: int, n_fields: int, config: ReadConfig
) -> Iterator[RawRow]:
    """Yield the rows of a CSV file; a row may span lines. `dialect` are options of csv.reader.

    Invalid UTF-8 becomes surrogates; `read` drops such rows.

    If a row spans lines, it must have `n_fields` fields and correct quotes. Otherwise its first line holds a quote that
    is not closed: this line is a bad row, and reading continues with the next line. Raises DamageError, or
    another exception of DAMAGE, once the rows before the damage were read.
    """
    lines = Lines(file, offset, number, config)
    again = deque[Line]()  # lines to read once more
    taken: list[Line] = []  # lines of the current row
    damage: list[Exception] = []
    escapes = Escapes(dialect)

    def feed() -> Iterator[str]:
        while True:
            try:
                line = again.popleft() if again else None if damage else lines.next()
            except DAMAGE as error:  # raised after the lines before it, which an open quote has taken
                damage.append(error)
                line = None
            if line is None:
                return
            if taken and (line.text is None or len(taken) == config.max_row_lines):
                again.appendleft(line)
                raise UnclosedQuoteError
            taken.append(line)
            yield escapes.convert((line.text or b"").decode("utf-8", errors="surrogateescape"), len(taken) == 1)

    reader = csv.reader(feed(), **dialect, strict=True)
    while True:
        taken.clear()
        problem = ""
        values: list[str] = []
        try:
            values = next(reader)
            if len(taken) > 1 and len(values) != n_fields:
                problem = UNCLOSED
        except StopIteration:
            if damage:
                raise damage[0] from None
            return
        except UnclosedQuoteError:
            problem = f"a quoted field does not end within {len(taken)} lines"
        except csv.Error as error:
            problem = csv_problem(error) if len(taken) == 1 else UNCLOSED
        first = taken[0]
        if first.text is None:
            yield RawRow(first.offset, first.number, first.too_long(config))
        elif problem:
            yield RawRow(first.offset, first.number, BadRecord(problem))
            again.extendleft(reversed(taken[1:]))
            reader = csv.reader(feed(), **dialect, strict=True)
        elif values:
            yield RawRow(first.offset, first.number, values)
        elif not again:
            lines.skip_blank(first, LINE_ENDS)


LONE_CR: Final = r"a carriage return (\r) that is not part of a line end; end lines with \n or \r\n"
UNCLOSED: Final = "a quoted field does not end in this row"
PROBLEMS: Final = {
    "new-line character": f"{LONE_CR}, or quote the field",
    "unexpected end of data": UNCLOSED,
    "'": "text after a closing quote; set read.escape, such as \\ for files of Spark and MySQL, or read.quotes=false if "
    "quotes are characters like any other",
}
"""Beginning of a message of the CSV parser -> a description with the fix."""


def csv_problem(error: csv.Error) -> str:
    """Describe an error of the CSV parser, with the fix where its message has none."""
    text = str(error)
    return next((problem for start, problem in PROBLEMS.items() if text.startswith(start)), text)


# Values of JSON files.

CHUNK: Final = 1 << 18
MAX_KEYS: Final = 1000
TOKEN: Final = re.compile(rb'(?P<text>"(?:[^"\\]++|\\.)*+")|(?P<open>[\[{])|(?P<close>[\]}])|"', re.DOTALL)
"""A complete text, a bracket, or the quote of a text that continues behind the buffer."""
TEXT_END: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
SCALAR_END: Final = re.compile(rb"[\s,\]}]")
BLANK: Final = re.compile(rb"[\s,:]*+")
BOM: Final = b"\xef\xbb\xbf"


class Values:
    """The JSON values of a file from byte `offset` on, one after the other."""

    def __init__(self, file: IO[bytes], offset: int, config: ReadConfig) -> None:
        self._file, self._max_bytes = file, config.max_row_bytes
        self._data, self._pos, self._next = b"", 0, offset  # `_next`: byte of the file behind `_data`

    @property
    def offset(self) -> int:
        """The byte of the file that follows."""
        return self._next - len(self._data) + self._pos

    def peek(self) -> bytes:
        """Skip blanks, commas and colons; return the next byte without reading it, b"" at the end of the file.

        Raises DamageError for more than `max_row_bytes` of them.
        """
        start = self.offset
        while True:
            found = BLANK.match(self._data, self._pos)
            self._pos = found.end() if found else self._pos
            if self._pos < len(self._data):
                return self._data[self._pos : self._pos + 1]
            if self.offset - start > self._max_bytes:
                raise DamageError(f"more than {self._max_bytes} blank bytes before {self.offset}")
            if not self._fill(self._pos):
                return b""

    def take(self) -> None:
        """Read the byte that `peek` returned."""
        self._pos += 1

    def skip_mark(self) -> None:
        """Skip the byte order mark at the start of a file."""
        while len(self._data) < len(BOM) and self._fill(0):
            pass
        self._pos = len(BOM) if self._data.startswith(BOM) else 0

    def value(self) -> bytes | BadRecord:
        """Read the value that starts at the byte that `peek` returned; one that is too long is skipped.

        Raises DamageError if the file ends within it.
        """
        start = self.offset
        if self._data[self._pos : self._pos + 1] in b'"[{':
            self._find_end()
        else:
            self._find_scalar_end()
        n_bytes = self.offset - start
        if n_bytes > self._max_bytes:
            return BadRecord(f"the value has {n_bytes} bytes, more than the limit of {self._max_bytes}")
        return self._data[self._pos - n_bytes : self._pos]

    def _find_end(self) -> None:
        """Move behind the text, list or object that starts here."""
        start, depth = self.offset, 0
        while True:
            for token in TOKEN.finditer(self._data, self._pos):
                self._pos = token.end()
                if token["open"]:
                    depth += 1
                elif token["close"]:
                    depth -= 1
                elif not token["text"]:
                    self._find_text_end(start)
                    if depth:
                        break  # the buffer has changed
                if depth == 0:
                    return
            else:
                self._pos = len(self._data)
                self._continue(start)

    def _find_text_end(self, start: int) -> None:
        """Move behind the closing quote of a text of which `_pos` is a character; `start` as in `_continue`."""
        while True:
            found = TEXT_END.match(self._data, self._pos)
            self._pos = found.end() if found else self._pos
            if self._data[self._pos : self._pos + 1] == b'"':
                self._pos += 1
                return
            self._continue(start)  # at the end, or at its last backslash

    def _find_scalar_end(self) -> None:
        start = self.offset
        while not (found := SCALAR_END.search(self._data, self._pos)):
            self._pos = len(self._data)
            if not self._fill(self._kept(start)):
                return
        self._pos = found.start()

    def _kept(self, start: int) -> int:
        """The bytes of the buffer to drop: those before a value at `start`, and those of one that is too long."""
        n_bytes = self.offset - start
        return self._pos if n_bytes > self._max_bytes else self._pos - n_bytes

    def _continue(self, start: int) -> None:
        """Read on within a value that begins at byte `start`. Raises DamageError at the end of the file."""
        if not self._fill(self._kept(start)):
            raise DamageError(f"truncated inside the value at byte {start}")

    def _fill(self, n_dropped: int) -> bool:
        """Drop bytes of the buffer and add those that follow; return False at the end of the file."""
        self._file.seek(self._next)
        block = self._file.read(CHUNK)
        self._data, self._pos = self._data[n_dropped:] + block, self._pos - n_dropped
        self._next += len(block)
        return bool(block)


def _rows(file: IO[bytes], offset: int, config: ReadConfig) -> Iterator[RawRow]:
    values, is_list, is_inner = _first(file, config)
    if offset:
        values = Values(file, offset, config)
    while (byte := values.peek()) != b"":
        start = values.offset
        if byte == b"]" and is_list:
            values.take()
            if not is_inner and values.peek():
                kind = "NUL bytes" if values.peek() == b"\0" else "more text"
                raise DamageError(f"{kind} behind the end of the list at byte {start}")
            return
        if byte in b"]}":
            raise DamageError(f"{byte.decode()} at byte {start}, where a value is expected")
        yield RawRow(start, 0, values.value())
    if is_list:
        raise DamageError(f"the list does not end, so the file may be truncated at byte {values.offset}")


def _first(file: IO[bytes], config: ReadConfig) -> tuple[Values, bool, bool]:
    """Return the values at the first row; True if they are in a list; True if the list is in an object."""
    values = Values(file, 0, config)
    values.skip_mark()
    byte = values.peek()
    if byte == b"[":
        values.take()
        return values, True, False
    if config.json_key is None or byte != b"{":
        return values, False, False
    names = list[str]()
    for name in keys(values):
        if name == config.json_key and values.peek() == b"[":
            values.take()
            return values, True, True
        names.append(name)
        values.value()
    found = ", ".join(names) or "none"
    raise LayoutError(f"it has no list {config.json_key} (its keys are {found}); set read.json_key=NAME")


def keys(values: Values) -> Iterator[str]:
    """Yield the keys of the object that follows; the caller reads the value of each."""
    values.take()
    for _ in range(MAX_KEYS):
        byte = values.peek()
        if byte == b"}":
            return
        if byte != b'"':
            raise DamageError(f"no key at byte {values.offset}")
        text = values.value()
        try:
            name = str(json.loads(text.decode())) if isinstance(text, bytes) else "?"
        except ValueError:
            raise DamageError(f"no key before byte {values.offset}") from None
        if not values.peek():
            raise DamageError(f"the object does not end, so the file may be truncated at byte {values.offset}")
        yield name
    raise DamageError(f"the object has more than {MAX_KEYS} keys")


def _columns(file: IO[bytes], config: ReadConfig) -> Iterator[RawRow]:
    """Yield the rows of an object with a list per column, which are read side by side."""
    lists = column_lists(file, config)
    columns = {name: Values(file, offset, config) for name, offset in lists.items()}
    row = 0
    while columns:
        ends = {name for name, values in columns.items() if values.peek() in (b"]", b"")}
        if ends:
            if len(ends) < len(columns):
                raise DamageError(f"the list {min(ends)} has only {row} values")
            return
        yield RawRow(row, 0, {name: values.value() for name, values in columns.items()})
        row += 1


def column_lists(file: IO[bytes], config: ReadConfig) -> dict[str, int]:
    """Return the byte at which each list of an object starts. Raises DamageError, also for a truncated file."""
    values = Values(file, 0, config)
    values.skip_mark()
    if values.peek() != b"{":
        raise DamageError("no object with a list per column, as read.json_layout=columns expects")
    found: dict[str, int] = {}
    for name in keys(values):
        if values.peek() == b"[":
            found[name] = values.offset + 1
        values.value()
    return found


def join_columns(payload: dict[str, Any], config: ReadConfig) -> Any:
    """Return the row of `_columns` as a record, or a BadRecord."""
    record: dict[str, Any] = {}
    for name, value in payload.items():
        text = value if isinstance(value, BadRecord) else decode(value, named=config.encoding)
        if isinstance(text, BadRecord):
            return BadRecord(f"{name}: {text.message}")
        try:
            record[name] = json.loads(text)
        except (ValueError, RecursionError) as error:
            return BadRecord(f"{name} is not valid JSON: {error}")
    return record


class Json(JsonRows):
    """A list of objects, objects one after the other, the list `read.json_key` in an object, or a list per column.

    With `json_layout=columns`, the offset of a row is its number. Raises DamageError for a damaged or truncated file,
    after the rows before the damage, and LayoutError.
    """

    name = "json"
    suffixes = (".json",)

    def columns(self, file: IO[bytes], config: ReadConfig) -> ColumnNames | None:
        if config.json_layout == "rows":
            return super().columns(file, config)
        if is_stream(file):
            raise LayoutError("read.json_layout=columns needs a file in UTF-8 without compression; convert it")
        return list(column_lists(file, config))

    def refuse_first(self, first: BadRecord, config: ReadConfig) -> None:
        if config.json_key is None:
            fix = "if the rows are in a list within an object, set read.json_key=NAME"
            raise LayoutError(f"its first value is no row ({first.message}); {fix}")

    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        if config.json_layout == "columns":
            return islice(_columns(file, config), offset, None)
        return _rows(file, offset, config)

    def parse(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        return (
            join_columns(payload, config)
            if config.json_layout == "columns"
            else super().parse(payload, header, file, config)
        )
