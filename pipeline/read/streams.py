"""Open input files as decompressed bytes and text in UTF-8, in bounded memory, without losing what precedes a damage."""

import bz2
import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Final, Protocol

import pyarrow as pa

from hypergrit_common.errors import UserError
from hypergrit_common.files import is_broken_link
from hypergrit_common.image_header import type_of
from hypergrit_common.remote import BUFFER, one_line, open_file, store_errors
from hypergrit_common.tar import TarError
from pipeline.read.roots import without_query

CHUNK: Final = 1 << 16
UTF8: Final = ("utf-8", "ascii")
"""Names of codecs whose files are read without a stream."""
INVALID: Final = "hypergrit.invalid"
"""Error handler of codecs: invalid bytes become a byte that is invalid in UTF-8 too, so that `read` drops the row."""

codecs.register_error(INVALID, lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


class DamageError(Exception):
    """A file that is damaged, truncated, or not of its format from some byte on."""


class LayoutError(Exception):
    """A file whose rows are not where the settings say; the message has the fix."""


class DamagedFileError(UserError):
    """An input file whose content is not of its format, from some byte on."""


DAMAGE: Final = (EOFError, gzip.BadGzipFile, zlib.error, DamageError)
"""Exceptions of reading a damaged file."""
UNREADABLE: Final = (*DAMAGE, TarError, pa.ArrowException, UnicodeDecodeError, csv.Error)
"""Exceptions of reading and parsing a damaged file."""


class Readable(Protocol):
    """A stream that is read from its beginning."""

    def read1(self, size: int, /) -> bytes:
        """Return up to `size` bytes, and none only at the end. Raises one of DAMAGE after all bytes before it."""


class Bz2Source:
    """The content of a bzip2 file, which may have several streams."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._decompressor = file, bz2.BZ2Decompressor()

    def read1(self, size: int) -> bytes:
        while True:
            data = b""
            if self._decompressor.eof:
                data = self._decompressor.unused_data or self._file.read(CHUNK)
                if not data:
                    return b""
                self._decompressor = bz2.BZ2Decompressor()
            elif self._decompressor.needs_input and not (data := self._file.read(CHUNK)):
                raise DamageError("the bzip2 data are truncated")
            try:
                found = self._decompressor.decompress(data, size)
            except (OSError, ValueError) as error:
                raise DamageError(f"damaged bzip2 data: {error}") from error
            if found:
                return found


class ZstdSource:
    """The content of a Zstandard file, which may have several frames; a frame needs at most 128 MB of memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._offset = file, 0
        self._damage: DamageError | None = None
        self._open()

    def read1(self, size: int) -> bytes:
        if self._damage:
            raise self._damage
        try:
            found = self._read(min(size, CHUNK))
        except DamageError as error:  # pyarrow lost the bytes before it: read them again, one by one
            self._damage = error
            if not (found := self._before_damage()):
                raise
        self._offset += len(found)
        return found

    def _open(self) -> None:
        self._raw = _Raw(self._file)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._raw, mode="r"), "zstd")

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except (OSError, pa.ArrowException) as error:
            if self._raw.error is not None:
                raise self._raw.error from None
            raise DamageError(f"damaged Zstandard data: {error}") from error

    def _before_damage(self) -> bytes:
        self._file.seek(0)
        self._open()
        left = self._offset
        while left:
            left -= len(self._read(min(left, CHUNK)))
        found = bytearray()
        try:
            while byte := self._read(1):
                found += byte
        except DamageError:
            pass
        return bytes(found)


class _Raw(io.RawIOBase):
    """A file that pyarrow cannot close, and which keeps the exception of a failed read."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file, self.error = file, None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except BaseException as error:
            self.error = error  # type: ignore[assignment]
            raise

    def close(self) -> None:
        pass


class TranscodedSource:
    """The text of a file in another encoding, as UTF-8."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)(INVALID)
        self._rest, self._is_at_end, self._encoding = b"", False, encoding

    def read1(self, size: int) -> bytes:
        while not self._rest and not self._is_at_end:
            data = self._file.read(CHUNK)
            self._is_at_end = not data
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeError:  # of a codec whose text must begin with a mark: its handler gets all other errors
                raise LayoutError(
                    f"it does not begin with the mark of {self._encoding}; set read.encoding to its own, such as utf-8"
                ) from None
            self._rest = text.encode("utf-8", "surrogateescape")
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


class Stream(io.RawIOBase):
    """A Readable as a file: it seeks by reading, backwards from the beginning of `file`."""

    def __init__(self, file: IO[bytes], start: Callable[[IO[bytes]], Readable]) -> None:
        super().__init__()
        self._file, self._start = file, start
        self._source, self._offset = start(file), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: Any) -> int:
        data = self._source.read1(len(buffer))
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the size of a stream is not known")
        target = offset + (self._offset if whence == io.SEEK_CUR else 0)
        if target < self._offset:
            self._file.seek(0)
            self._source, self._offset = self._start(self._file), 0
        while self._offset < target and (data := self._source.read1(min(target - self._offset, CHUNK))):
            self._offset += len(data)
        return self._offset


COMPRESSIONS: Final[dict[str, Callable[[IO[bytes]], Readable]]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": Bz2Source,
    ".zst": ZstdSource,
}
"""Suffix of a file -> its decompression."""


def is_stream(file: IO[bytes]) -> bool:
    """Return True for a buffered Stream, which cannot seek backwards at once."""
    return isinstance(getattr(file, "raw", None), Stream)


def compression_of(path: str) -> str:
    """The key of COMPRESSIONS that a file name ends with, "" if it is not compressed."""
    name = without_query(path).lower()
    if name.endswith(".tgz"):
        return ".gz"
    return next((suffix for suffix in COMPRESSIONS if name.endswith(suffix)), "")


@contextmanager
def open_stream(path: str, encoding: str = "utf-8", headers: bool = False) -> Iterator[IO[bytes]]:
    """Open a file as decompressed bytes, and text of another encoding in UTF-8.

    `headers`: only the headers of a tar are read, and large members of a remote one that is not compressed are skipped.
    """
    compression = compression_of(path)
    with open_file(path, headers=headers and not compression) as file:
        if compression:
            file = io.BufferedReader(Stream(file, COMPRESSIONS[compression]), BUFFER)
        if codecs.lookup(encoding).name not in UTF8:
            file = io.BufferedReader(Stream(file, partial(TranscodedSource, encoding=encoding)), BUFFER)
        yield file


def mistaken_type(path: str) -> str:
    """Return what a file is by its first bytes, with the end of a name for it, unless `path` has that; "" if unknown."""
    try:
        with open_file(path, headers=True) as file:
            kind = type_of(head) if (head := file.read(1024)) else "empty"
    except store_errors(ValueError, UserError):
        return ""
    return "" if without_query(path).lower().endswith(kind.rpartition("(")[2].rstrip(")") or "?") else kind


def check_text(file: IO[bytes]) -> None:
    """Raise DamageError if a file of text is something else; an empty one has no rows."""
    if (head := file.read(1024)) and (kind := type_of(head)):
        raise DamageError(f"it is {kind}")
    file.seek(0)


@contextmanager
def input_errors(path: str, rows: str = "") -> Iterator[None]:
    """Convert the errors of reading a file to UserError, which names it.

    `rows` names the rows to read, for the message. The error is a DamagedFileError if the file can be read, but not parsed.
    """
    try:
        yield
    except LayoutError as error:
        raise UserError(f"input file {path}: {error}") from error
    except store_errors(*UNREADABLE) as error:
        is_broken = is_broken_link(path)
        kind = DamagedFileError if is_broken or isinstance(error, UNREADABLE) else UserError
        reason = "it is a link to a file that does not exist, or to itself" if is_broken else one_line(error)
        if kind is DamagedFileError and (found := mistaken_type(path)) and found not in reason:
            reason = f"it is {found} ({reason})"
        fix = "replace the file, or remove it from the input"
        fix = f"set read.encoding, such as utf-16, or {fix}" if isinstance(error, UnicodeDecodeError) else fix
        raise kind(f"cannot read {rows}input file {path}: {reason}; {fix}") from error
