"""The members of a tar, from its headers alone.

`tarfile` makes an object and a dictionary of each; the loader needs three numbers, of a hundred million members. This
knows ustar, pax and GNU's long names, which is what webdataset, tarfile, tar and img2dataset write.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

BLOCK: Final = 512
CHECKSUM: Final = slice(148, 156)
MAX_EXTENSION_BYTES: Final = 1 << 20  # of a long name or of pax records
REGULAR: Final = (b"0", b"\0", b"7")

ReadAt = Callable[[int, int], bytes]
"""(offset, length) to the bytes there; fewer at the end."""


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    header: int  # where its first header begins, in bytes from where the walk's offsets count
    start: int  # where its content begins
    size: int


class TarError(Exception):
    """What stands at an offset is no tar, or the tar is cut off there: within the content of `member`, if it is given."""

    def __init__(self, message: str, member: str = "") -> None:
        super().__init__(message)
        self.member = member


def walk(read_at: ReadAt, start: int, end: int, check: bool = True) -> Iterator[Member]:
    """Members from `start`, where a header is, to the archive's end mark, or to `end` if `end` comes first.

    Raises TarError at a damaged header, and where a header or a member's content goes past `end`. `check` compares the
    headers' checksums.
    """
    at, first = start, None
    name: str | None = None
    size: int | None = None
    while at < end:
        header = read_at(at, BLOCK)
        if len(header) < BLOCK:
            raise TarError(f"cut off at byte {at}, within a header")
        if header[0] == 0 and not any(header):
            return
        if check:
            check_header(header, at)
        first = at if first is None else first
        kind, own_size = header[156:157], number(header[124:136], at)
        content = at + BLOCK
        if kind in (b"x", b"L"):
            if own_size > MAX_EXTENSION_BYTES:
                raise TarError(f"a name of {own_size} bytes at byte {at}")
            data = read_at(content, own_size)
            if len(data) < own_size:
                raise TarError(f"cut off at byte {content + len(data)}, within a name")
            if kind == b"L":
                name = text(data)
            else:
                records = pax_records(data, at)
                name = records.get("path", name)
                size = int(records["size"]) if records.get("size", "").isdigit() else size
            at = content + padded(own_size)
            continue
        own_size = own_size if size is None else size
        if content + own_size > end:
            cut = name or full_name(header)
            raise TarError(f"cut off within {cut}", cut)
        if kind in REGULAR:
            yield Member(name or full_name(header), first, content, own_size)
        at, first, name, size = content + padded(own_size), None, None, None


def padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def full_name(header: bytes) -> str:
    """A header's own name, with ustar's prefix; GNU's magic has other things in that place."""
    name = text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        return f"{text(header[345:500])}/{name}"
    return name


def number(field: bytes, at: int) -> int:
    """An octal number, or GNU's binary one of 8 GiB and more."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise TarError(f"no tar header at byte {at}") from None


def check_header(header: bytes, at: int) -> None:
    """The sum of a header's bytes, its own field counted as blanks."""
    total = sum(header) - sum(header[CHECKSUM]) + 8 * ord(" ")
    if total != number(header[CHECKSUM], at):
        raise TarError(f"no tar header at byte {at}, or a damaged one")


def pax_records(data: bytes, at: int) -> dict[str, str]:
    """Records `LENGTH KEY=VALUE\\n`; LENGTH counts the whole record."""
    records, start = {}, 0
    while start < len(data):
        length, blank, _ = data[start : start + 20].partition(b" ")
        if not blank or not length.isdigit() or not len(length) + 1 < int(length) <= len(data) - start:
            raise TarError(f"a damaged pax header at byte {at}")
        key, _, value = data[start + len(length) + 1 : start + int(length) - 1].partition(b"=")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        start += int(length)
    return records
