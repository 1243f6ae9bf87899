"""Rows of .json files, in bounded memory: a list of objects, one object per row, or an object with lists.

Values are found by their brackets and quotes, and parsed one by one; a long or malformed value costs only its row.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any, Final

from pipeline.read.config import ReadConfig
from pipeline.read.types import BadRecord, RawRow

CHUNK: Final = 1 << 18
MAX_KEYS: Final = 1000
TOKEN: Final = re.compile(rb'(?P<text>"(?:[^"\\]++|\\.)*+")|(?P<open>[\[{])|(?P<close>[\]}])|"', re.DOTALL)
"""A complete text, a bracket, or the quote of a text that continues behind the buffer."""
TEXT_END: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
SCALAR_END: Final = re.compile(rb"[\s,\]}]")
BLANK: Final = re.compile(rb"[\s,:]*+")
BOM: Final = b"\xef\xbb\xbf"


class JsonDamageError(Exception):
    """A file that is no JSON from some byte on, or ends too early."""


class MissingListError(Exception):
    """A file whose rows are not where the settings say; the message has the fix."""


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

        Raises JsonDamageError for more than `read.max_row_bytes` of them.
        """
        start = self.offset
        while True:
            found = BLANK.match(self._data, self._pos)
            self._pos = found.end() if found else self._pos
            if self._pos < len(self._data):
                return self._data[self._pos : self._pos + 1]
            if self.offset - start > self._max_bytes:
                raise JsonDamageError(
                    f"more than read.max_row_bytes={self._max_bytes} blank bytes before {self.offset}"
                )
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

        Raises JsonDamageError if the file ends within it.
        """
        start = self.offset
        if self._data[self._pos : self._pos + 1] in b'"[{':
            self._find_end()
        else:
            self._find_scalar_end()
        n_bytes = self.offset - start
        if n_bytes > self._max_bytes:
            return BadRecord(f"the value has {n_bytes} bytes, more than read.max_row_bytes={self._max_bytes}")
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
        """Read on within a value that begins at byte `start`. Raises JsonDamageError at the end of the file."""
        if not self._fill(self._kept(start)):
            raise JsonDamageError(f"truncated inside the value at byte {start}")

    def _fill(self, n_dropped: int) -> bool:
        """Drop bytes of the buffer and add those that follow; return False at the end of the file."""
        self._file.seek(self._next)
        block = self._file.read(CHUNK)
        self._data, self._pos = self._data[n_dropped:] + block, self._pos - n_dropped
        self._next += len(block)
        return bool(block)


def json_rows(file: IO[bytes], offset: int, config: ReadConfig) -> Iterator[RawRow]:
    """Yield the rows of a file from byte `offset`; 0 is its start. With `json_layout=columns`, `offset` counts rows.

    Raises JsonDamageError for a damaged or truncated file, after the rows before the damage, and MissingListError.
    """
    if config.json_layout == "columns":
        return islice(_columns(file, config), offset, None)
    return _rows(file, offset, config)


def _rows(file: IO[bytes], offset: int, config: ReadConfig) -> Iterator[RawRow]:
    values, is_list, is_inner = _first(file, config)
    if offset:
        values = Values(file, offset, config)
    while (byte := values.peek()) != b"":
        start = values.offset
        if byte == b"]" and is_list:
            values.take()
            if not is_inner and values.peek():
                raise JsonDamageError(f"more text behind the end of the list at byte {start}")
            return
        if byte in b"]}":
            raise JsonDamageError(f"{byte.decode()} at byte {start}, where a value is expected")
        yield RawRow(start, 0, values.value())
    if is_list:
        raise JsonDamageError(f"the list does not end, so the file may be truncated at byte {values.offset}")


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
    for name in (found := Keys(values)):
        if name == config.json_key and values.peek() == b"[":
            values.take()
            return values, True, True
        found.names.append(name)
        values.value()
    names = ", ".join(found.names) or "none"
    raise MissingListError(f"it has no list {config.json_key} (its keys are {names}); set read.json_key=NAME")


class Keys:
    """The keys of the object that follows; the caller reads the value of each. `names` is for messages."""

    def __init__(self, values: Values) -> None:
        self._values, self.names = values, list[str]()

    def __iter__(self) -> Iterator[str]:
        values = self._values
        values.take()
        for _ in range(MAX_KEYS):
            byte = values.peek()
            if byte == b"}":
                return
            if byte != b'"':
                raise JsonDamageError(f"no key at byte {values.offset}")
            text = values.value()
            try:
                name = str(json.loads(text)) if isinstance(text, bytes) else "?"
            except ValueError:
                raise JsonDamageError(f"no key before byte {values.offset}") from None
            if not values.peek():
                raise JsonDamageError(f"the object does not end, so the file may be truncated at byte {values.offset}")
            yield name
        raise JsonDamageError(f"the object has more than {MAX_KEYS} keys")


def _columns(file: IO[bytes], config: ReadConfig) -> Iterator[RawRow]:
    """Yield the rows of an object with a list per column, which are read side by side."""
    lists = column_lists(file, config)
    columns = {name: Values(file, offset, config) for name, offset in lists.items()}
    row = 0
    while columns:
        ends = {name for name, values in columns.items() if values.peek() in (b"]", b"")}
        if ends:
            if len(ends) < len(columns):
                raise JsonDamageError(f"the list {min(ends)} has only {row} values")
            return
        yield RawRow(row, 0, {name: values.value() for name, values in columns.items()})
        row += 1


def column_lists(file: IO[bytes], config: ReadConfig) -> dict[str, int]:
    """Return the byte at which each list of an object starts. Raises JsonDamageError, also for a truncated file."""
    values = Values(file, 0, config)
    values.skip_mark()
    if values.peek() != b"{":
        raise JsonDamageError("no object with a list per column, as read.json_layout=columns expects")
    found: dict[str, int] = {}
    for name in Keys(values):
        if values.peek() == b"[":
            found[name] = values.offset + 1
        values.value()
    return found


def join_columns(payload: dict[str, Any]) -> Any:
    """Return the row of `_columns` as a record, or a BadRecord."""
    record: dict[str, Any] = {}
    for name, text in payload.items():
        if isinstance(text, BadRecord):
            return BadRecord(f"{name}: {text.message}")
        try:
            record[name] = json.loads(text)
        except (ValueError, RecursionError) as error:
            return BadRecord(f"{name} is not valid JSON: {error}")
    return record
