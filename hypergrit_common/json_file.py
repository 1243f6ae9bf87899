"""JSON files that hold one object, such as the configuration of a model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hypergrit_common.disk import atomic_write
from hypergrit_common.files import read_limited

MAX_BYTES: Final = 1 << 28  # more than the list of a million shards


def read_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises OSError if the file cannot be opened, and ValueError that begins with its path if it does not hold an object.
    """
    return parse_object(read_limited(path, MAX_BYTES), str(path))


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the object in a JSON text, such as a line of a file. Raises ValueError that begins with its place `where`."""
    try:
        value = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds no JSON object")
    return value


def write_object(values: Mapping[str, Any], path: Path) -> None:
    """Write an object to a JSON file atomically, keys in the given order.

    Raises TypeError for a value that JSON cannot represent.
    """
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
