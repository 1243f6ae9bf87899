"""Read the annotation files of benchmarks. Errors name the file, the entry and the fix."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from common.errors import UserError
from common.files import check_file

Value = TypeVar("Value")

SURROGATES: Final = re.compile("[\ud800-\udfff]")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError if it cannot be read."""
    try:
        check_file(path)
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}; download it again") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, stripped. Raises UserError if it cannot be read."""
    try:
        check_file(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; download it again") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def field(entry: object, key: str, kind: type[Value], where: str) -> Value:
    """The value of a key of a JSON object. Raises UserError, beginning with `where`, for another type or damaged text."""
    value = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(
            f"{where}: {key!r} is {'missing' if value is None else f'{value!r:.40}'}; it must be of type "
            f"{kind.__name__}; download the file again"
        )
    check_text(value, f"{where}: {key!r}")
    return value


def image_urls(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The addresses of an image in a file of COCO."""
    return tuple(entry[key] for key in ("coco_url", "flickr_url") if isinstance(entry.get(key), str))


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
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(root: Path, *paths: Path) -> dict[str, str]:
    """The checksum of each path, by its path below `root`."""
    return {below(root, path): checksum(path) for path in paths}


def below(root: Path, path: Path) -> str:
    """The path below `root`, or the whole path of a file elsewhere."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
