"""JSON files that hold one object, such as the configuration of a model."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints, is_typeddict

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


hints_of = cache(get_type_hints)


def fits(value: Any, kind: Any) -> bool:
    """Return True if a JSON value has a type, such as a TypedDict, of which fields may be missing, as in other versions."""
    base, items = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        hints = hints_of(kind)
        return isinstance(value, dict) and all(fits(value[name], hints[name]) for name in hints.keys() & value.keys())
    if base is tuple:
        return isinstance(value, list) and len(value) == len(items) and all(map(fits, value, items))
    if base is list:
        return isinstance(value, list) and all(fits(item, items[0]) for item in value)
    if base is dict:
        return isinstance(value, dict) and all(fits(item, items[1]) for item in value.values())
    if base is not None:  # a union, or a Literal
        return any(fits(value, item) if isinstance(item, type) or get_origin(item) else value == item for item in items)
    if kind is int:
        return type(value) is int and abs(value) < 1 << 63
    if kind is float:
        return isinstance(value, (float, int)) and abs(value) < 1 << 63  # neither infinite nor NaN
    return kind is Any or isinstance(value, kind)
