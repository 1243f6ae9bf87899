"""List the members of an untrusted tar from its headers, without reading their contents.

`tarfile` creates an object and a dictionary for each member. Indexing needs only a few numbers for each of up to a
hundred million members. The supported formats are ustar, pax and GNU long names, which webdataset, tarfile, tar and
img2dataset write. Time and memory are linear in the number of headers, whatever they claim; sparse files are refused.
"""

import errno
import os
from collections.abc import Callable, Iterator
from typing import IO, Final, NamedTuple
from zlib import adler32

BLOCK: Final = 512
RECORD: Final = 20 * BLOCK
"""The usual size of which that of a tar is a multiple."""
CHECKSUM: Final = slice(148, 156)
MAGIC: Final = b"ustar"
MAX_EXTENSION_BYTES: Final = 1 << 20  # maximum size of a long name or of pax records
MAX_EXTENSIONS: Final = 16  # extended headers before a member; tar writes at most four
MAX_RECORDS: Final = 1000  # of a pax header
MAX_SIZE: Final = 1 << 62
READ_AHEAD: Final = 4096
"""Bytes that are read for a header, a page of the disk: those after it may hold the next headers."""
PADDING_BLOCK: Final = 1 << 20
"""Number of bytes of padding that are read at once."""
REGULAR: Final = (b"0", b"\0", b"7")
WITHOUT_CONTENT: Final = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Links, devices, folders and pipes: the size in their headers does not count."""
LINKS: Final = WITHOUT_CONTENT[:2]
PAX, PAX_GLOBAL, LONG_NAME, LONG_LINK, GNU_SPARSE = b"x", b"g", b"L", b"K", b"S"
EXTENSIONS: Final = (PAX, PAX_GLOBAL, LONG_NAME, LONG_LINK)
PAX_SPARSE: Final = "GNU.sparse."

ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> `length` bytes starting at `offset`, or fewer at the end of the data."""


class FileReader:
    """A `ReadAt` of an open file. Of a file on a disk, headers and the small members between them are read together."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._start, self._ahead = 0, b""
        try:
            file.fileno()
            self._read_ahead = READ_AHEAD
        except (OSError, AttributeError):  # a stream, which cannot go back, or a remote file, which has a buffer
            self._read_ahead = 0

    def __call__(self, offset: int, length: int) -> bytes:
        place = offset - self._start
        if 0 <= place <= len(self._ahead) - length:
            return self._ahead[place : place + length]
        self._file.seek(offset)
        if length >= self._read_ahead:
            return self._file.read(length)
        self._start, self._ahead = offset, self._file.read(self._read_ahead)
        return self._ahead[:length]

    def next_data(self, offset: int) -> int | None:
        """Return the first byte from `offset` that takes space on the disk, or None at the end of the data.

        Without support of the file system, as for a remote file, it is `offset`.
        """
        try:
            descriptor = self._file.fileno()
            position = os.lseek(descriptor, 0, os.SEEK_CUR)
            try:
                return os.lseek(descriptor, offset, os.SEEK_DATA)
            finally:
                os.lseek(descriptor, position, os.SEEK_SET)  # a buffered file expects to find it
        except (OSError, AttributeError) as error:
            return None if getattr(error, "errno", None) == errno.ENXIO else offset


def reader_of(file: IO[bytes]) -> FileReader:
    """Return a function that reads from an open file."""
    return FileReader(file)


class Member(NamedTuple):
    """A regular file in a tar. Offsets are those that `read_at` takes."""

    name: str
    header_offset: int  # first byte of its first header
    data_offset: int  # first byte of its content
    size: int
    target: str = ""  # of a link, which has no content


class TarError(Exception):
    """Data that are not a tar, or a truncated tar.

    `member` is the name of the truncated member, or empty. `damaged_name` is the name in a damaged header, in which the
    damage may be, or empty.
    """

    def __init__(self, message: str, member: str = "", damaged_name: str = "") -> None:
        super().__init__(message)
        self.member, self.damaged_name = member, damaged_name


def iter_members(
    read_at: ReadAt, start: int, end: int, verify: bool = True, needs_mark: bool = False, links: bool = False
) -> Iterator[Member]:
    """Yield the regular files from `start`, the offset of a header, up to the end-of-archive mark or `end`.

    `links`: yield links too, with the beginning of a long target. `verify` compares the checksum of each header;
    `needs_mark` requires the mark, of which one block is enough. Raises TarError if a header is damaged, if a header or the
    content of a member extends beyond `end`, for sparse files, for more than `MAX_EXTENSIONS` extended headers of a member,
    for a missing mark, and for anything but padding, or another tar, after it.
    """
    offset, header_offset = start, None
    # Name and size of the next member, from a pax or GNU header before it.
    long_name: str | None = None
    long_size: int | None = None
    n_extensions = 0
    while offset < end:
        header = read_at(offset, BLOCK)
        if len(header) < BLOCK:
            raise TarError(f"truncated at byte {offset}, inside a header")
        if header[0] == 0 and not any(header):
            if (joined := next_tar(read_at, offset, end)) is None:
                return
            offset = joined
            continue
        if verify:
            verify_checksum(header, offset)
        header_offset = offset if header_offset is None else header_offset
        kind, size = header[156:157], parse_number(header[124:136], offset)
        data_offset, is_regular = offset + BLOCK, kind in REGULAR
        if not is_regular and kind in EXTENSIONS:
            n_extensions += 1
            if n_extensions > MAX_EXTENSIONS:
                raise TarError(f"more than {MAX_EXTENSIONS} extended headers before byte {offset}")
            if kind == LONG_NAME:
                long_name = decode_field(read_extension(read_at, offset, size))
            elif kind == PAX:
                records = parse_pax_records(read_extension(read_at, offset, size), offset)
                if any(key.startswith(PAX_SPARSE) for key in records):
                    raise TarError(f"the file of the header at byte {offset} is sparse; write the tar without --sparse")
                long_name = records.get("path", long_name)
                long_size = parse_decimal(records["size"], offset) if "size" in records else long_size
            offset = data_offset + round_up_to_block(size)
            continue
        name, size = long_name or parse_name(header), size if long_size is None else long_size
        if kind == GNU_SPARSE:
            raise TarError(f"{name} is a sparse file; write the tar without --sparse", name)
        if not is_regular and kind in WITHOUT_CONTENT:
            size = 0
        if data_offset + size > end:
            raise TarError(f"truncated inside {name}", name)
        if is_regular:
            yield Member(name, header_offset, data_offset, size)
        elif links and kind in LINKS:
            yield Member(name, header_offset, data_offset, 0, decode_field(header[157:257]) or "nothing")
        offset, header_offset, long_name, long_size = data_offset + -(-size // BLOCK) * BLOCK, None, None, None
        n_extensions = 0
    if needs_mark:
        raise TarError(f"no end-of-archive mark at byte {min(offset, end)}, so the tar may be truncated")


def next_tar(read_at: ReadAt, offset: int, end: int) -> int | None:
    """Return the first header of a tar that follows the end-of-archive mark at `offset`, as `cat` joins them, or None.

    It is where writers let the first one end: behind the two blocks of the mark, or at the end of a record. So a hole
    that ends before a header is rarely taken for a mark. Raises like `check_padding`.
    """
    place = offset
    for place in range(offset + BLOCK, min(offset + 2 * BLOCK + RECORD, end), BLOCK):
        if any(block := read_at(place, BLOCK)):
            is_end = place == offset + 2 * BLOCK or (place > offset + 2 * BLOCK and place % RECORD == 0)
            if is_end and len(block) == BLOCK and is_header(block, place):
                return place
            break
    check_padding(read_at, offset, place, end)
    return None


def is_header(block: bytes, offset: int) -> bool:
    """Return True for a header with the right checksum."""
    try:
        verify_checksum(block, offset)
    except TarError:
        return False
    return True


def check_padding(read_at: ReadAt, offset: int, position: int, end: int) -> None:
    """Raise TarError if anything but zeros, from `position` to `end`, follows the end-of-archive mark at `offset`.

    A hole in a file, as a crash or an interrupted download leaves it, looks like the mark, but has members behind it.
    Zeros up to the end are padding, however many: `tar -b` and file systems choose their number. They are read a block
    at a time, and not at all where they take no space on the disk.
    """
    while position < end:
        if isinstance(read_at, FileReader):
            found = read_at.next_data(position)
            if found is None or found >= end:
                return
            position = max(position, found)
        block = read_at(position, min(PADDING_BLOCK, end - position))
        if block.count(0) != len(block):
            size = f" of {end}" if end < MAX_SIZE else ""
            raise TarError(f"zeros at byte {offset}{size}, but no end of the archive: the tar has a hole")
        if not block:
            return
        position += len(block)


def read_extension(read_at: ReadAt, offset: int, size: int) -> bytes:
    """Read the content of the pax or GNU extension whose header is at `offset`.

    Raises TarError if it is too long or truncated.
    """
    if size > MAX_EXTENSION_BYTES:
        raise TarError(f"the extended header at byte {offset} has {size} bytes, more than {MAX_EXTENSION_BYTES}")
    data = read_at(offset + BLOCK, size)
    if len(data) < size:
        raise TarError(f"truncated at byte {offset + BLOCK + len(data)}, inside an extended header")
    return data


def round_up_to_block(size: int) -> int:
    """Round `size` up to a multiple of the block size: the space that a member's content takes."""
    return -(-size // BLOCK) * BLOCK


def decode_field(field: bytes) -> str:
    """Decode a field that ends at its first zero byte."""
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def parse_name(header: bytes) -> str:
    """Return the name in a header, with ustar's prefix. GNU headers use the bytes of the prefix for other fields."""
    name = header[:100].partition(b"\0")[0].decode("utf-8", "replace")
    if header[257:263] == b"ustar\0" and header[345]:
        return f"{decode_field(header[345:500])}/{name}"
    return name


def parse_number(field: bytes, offset: int) -> int:
    """Parse an octal number, or GNU's binary form for 8 GiB and more. Raises TarError, naming the header's `offset`."""
    if field[0] == 0x80:
        number = int.from_bytes(field[1:], "big")
        if number > MAX_SIZE:
            raise TarError(f"the header at byte {offset} gives a size of {number} bytes")
        return number
    digits = field.strip(b" \0") or b"0"
    try:
        if digits.isdigit():  # `int` also takes signs and underscores
            return int(digits, 8)
    except ValueError:
        pass  # the digits 8 and 9
    raise TarError(f"no tar header at byte {offset}")


def parse_decimal(text: str, offset: int) -> int:
    """Parse the value of a pax record. Raises TarError, naming the header's `offset`."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_SIZE):
        raise TarError(f"the pax header at byte {offset} gives the size {text[:20]!r}")
    return int(text)


def verify_checksum(header: bytes, offset: int) -> None:
    """Compare a header's checksum with the sum of its bytes, with spaces in place of the checksum itself.

    Raises TarError, naming the header's `offset`, if they differ; with a name if the block looks like a header.
    """
    # The low half of Adler-32 is the sum of up to 256 bytes, plus 1; `sum` takes ten times as long.
    total = (adler32(header[:256]) & 0xFFFF) + (adler32(header[256:]) & 0xFFFF) - (adler32(header[CHECKSUM]) & 0xFFFF)
    total += 8 * ord(" ") - 1
    if header[CHECKSUM] == b"%06o\0 " % total:  # as most programs write it
        return
    try:
        if total == parse_number(header[CHECKSUM], offset):
            return
        message = f"missing or damaged tar header at byte {offset}"
    except TarError as error:
        message = str(error)
    raise TarError(message, damaged_name=parse_name(header) if header[257:262] == MAGIC else "")


def parse_pax_records(data: bytes, offset: int) -> dict[str, str]:
    """Parse records of the form `LENGTH KEY=VALUE\\n`, where LENGTH counts the bytes of the whole record.

    Raises TarError, naming the header's `offset`, if a record is damaged.
    """
    records: dict[str, str] = {}
    start = n_records = 0
    while start < len(data):
        n_records += 1
        if n_records > MAX_RECORDS:
            raise TarError(f"more than {MAX_RECORDS} records in the pax header at byte {offset}")
        length, blank, _ = data[start : start + 20].partition(b" ")
        if not blank or not length.isdigit() or not len(length) + 1 < int(length) <= len(data) - start:
            raise TarError(f"damaged pax header at byte {offset}")
        key, _, value = data[start + len(length) + 1 : start + int(length) - 1].partition(b"=")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        start += int(length)
    return records
