"""Read the annotation files of benchmarks. Errors name the file, the entry and the fix."""

import hashlib
import json
import re
import reprlib
from collections.abc import Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file, file_hash
from hypergrit_common.json_file import parse_object

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

SURROGATES: Final = re.compile("[\ud800-\udfff]")
MAX_DIGITS: Final = 18
"""Digits of an integer in a text: it has at most 64 bits."""


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError if it cannot be read."""
    try:
        check_file(path)
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}; download it again") from error


def json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """The JSON object in a line. Raises UserError, beginning with the place `where`: the file and the line."""
    try:
        return parse_object(text, where)
    except ValueError as error:
        raise UserError(f"{error}; correct it, or download the file again") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, stripped. Raises UserError if it cannot be read."""
    return [line for _, line in numbered_lines(path)]


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of `read_lines` with their numbers in the file, which count blank lines too, from 1."""
    try:
        check_file(path)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; download it again") from error
    # Not by splitlines: JSON and captions may have other separators within a line, such as U+2028.
    return [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def field(entry: object, key: str, kind: type[Value], where: str) -> Value:
    """The value of a key of a JSON object. Raises UserError, beginning with `where`, for another type or damaged text."""
    value = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(
            f"{where}: {key!r} is {'missing' if value is None else shown(value)}; it must be of type "
            f"{kind.__name__}; download the file again"
        )
    check_text(value, f"{where}: {key!r}")
    return value


def shown(value: object) -> str:
    """The first 40 characters of the representation of a value, at a bounded cost for large and repeated containers."""
    return f"{reprlib.repr(value) if isinstance(value, Mapping | list) else repr(value):.40}"


def integer(value: Any, where: str) -> int:
    """An integer from its decimal digits, or from a number of a binary file. Raises UserError, beginning with `where`."""
    number = None
    if not isinstance(value, str):
        with suppress(
            TypeError, ValueError, OverflowError
        ):  # arrays and texts of NumPy; NaN and infinity are no integers
            number = int(value) if float(value).is_integer() else None
    elif value.isdecimal() and len(value) <= MAX_DIGITS:
        number = int(value)
    if number is None:
        raise UserError(f"{where}: {shown(value)} is not an integer of at most {MAX_DIGITS} digits; correct it")
    return number


def record_once(table: dict[Key, Value], key: Key, value: Value, where: str) -> None:
    """Set the value of a key. Raises UserError, beginning with `where`, if the key has another value already."""
    if table.setdefault(key, value) != value:
        raise UserError(f"{where} contradicts an earlier entry with the same id; correct one of them")


def check_text(value: object, where: str) -> None:
    """Raise UserError, beginning with `where`, for a string with half of a surrogate pair, which is not a character."""
    if isinstance(value, str) and SURROGATES.search(value):
        raise UserError(f"{where} is {value!r:.80}, which is not valid Unicode; correct the entry")


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits. For a folder: of the relative paths and sizes of all files in it."""
    if path.is_dir():
        listing = sorted(
            (str(file.relative_to(path)), file.stat().st_size) for file in path.rglob("*") if file.is_file()
        )
        return hashlib.sha256(repr(listing).encode()).hexdigest()
    check_file(path)
    return file_hash(path)


def checksums(root: Path, *paths: Path) -> dict[str, str]:
    """The checksum of each path, by its path below `root`."""
    return {below(root, path): checksum(path) for path in paths}


def below(root: Path, path: Path) -> str:
    """The path below `root`, or the whole path of a file elsewhere."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
