"""What an input holds beside its own columns: fields of nested values, columns in names of folders, pictures as text."""

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

import pyarrow as pa

from hypergrit_common.image_header import is_picture
from pipeline.read.roots import is_web

# Fields of nested columns by names such as `image.url` and `conversations[1].value`.

INDEX: Final = re.compile(r"\[(-?\d+)\]\.?")
END: Final = re.compile(r"[.\[]")


def look_up(value: Any, path: str) -> Any:
    """Return what a path names in a value, or in an Arrow type the type of that.

    A name with dots of its own comes before fields of shorter names. Without an index, a list gives the list of its
    items' values. Text is read as JSON. Raises LookupError.

    >>> look_up({"chat": [{"value": "hello"}, {"value": "a dog"}]}, "chat[1].value")
    'a dog'
    """
    if not path:
        return value
    index = INDEX.match(path)
    if isinstance(value, pa.DataType):
        return _look_up_type(value, path[index.end() :] if index else path)
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise LookupError(path) from None
    if isinstance(value, list) and index:
        return look_up(value[int(index[1])], path[index.end() :])
    if isinstance(value, list) and not all(isinstance(item, tuple) for item in value):
        return [look_up(item, path) for item in value]
    return _field(dict(value) if isinstance(value, list) else value, path)  # a list of pairs: a map of Arrow


def _look_up_type(kind: Any, path: str) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return look_up(kind.storage_type, path)
    if pa.types.is_map(kind):
        return kind.item_type
    if pa.types.is_dictionary(kind) or is_list(kind):
        return look_up(kind.value_type, path)
    if pa.types.is_struct(kind):
        return _field({kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}, path)
    if has_bytes(kind) or is_text(kind):
        return kind  # perhaps of JSON, of which the type tells nothing
    raise LookupError(path)


def _field(fields: Any, path: str) -> Any:
    if not isinstance(fields, Mapping):
        raise LookupError(path)
    name = root_of(path, fields)
    rest = path[len(name) :]
    return look_up(fields[name], rest[1:] if rest.startswith(".") else rest)


def root_of(path: str, names: Iterable[str]) -> str:
    """Return the longest of `names` with which a path begins. Raises LookupError."""
    known = names if isinstance(names, Mapping) else set(names)
    ends = chain([len(path)], reversed([found.start() for found in END.finditer(path)]))
    found = next((path[:end] for end in ends if path[:end] in known), None)
    if found is None:
        raise LookupError(path)
    return found


def nested_values(columns: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values, or types, of those `names` that are no columns, but fields of columns."""
    found: dict[str, Any] = {}
    for name in names:
        if name not in columns:
            with suppress(LookupError):
                found[name] = look_up(columns, name)
    return found


# Types of Arrow.


def types_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the types of columns by their names."""
    return dict(zip(schema.names, schema.types, strict=True))


def is_list(kind: Any) -> bool:
    """Return True for all types of lists, but not for maps."""
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in (*checks, pa.types.is_list_view, pa.types.is_large_list_view))


def is_text(kind: Any) -> bool:
    """Return True for types of text."""
    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def has_bytes(kind: Any) -> bool:
    """True for binary types, and lists or structs that contain one, such as the images of Hugging Face datasets."""
    if pa.types.is_dictionary(kind):
        return has_bytes(kind.value_type)
    if kind.num_fields:
        return any(has_bytes(kind.field(i).type) for i in range(kind.num_fields))
    is_type = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(kind) for check in is_type)


# Columns in the names of folders, as Hive, Spark and Arrow write them: table/lang=en/part-0.parquet.

NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@lru_cache(maxsize=4096)
def path_columns(path: str) -> Mapping[str, str | int | float | None]:
    """Return the columns that the names of the folders of a file have.

    A number is one if it is written as Python writes it: `01` is text. Callers do not change the result.

    >>> path_columns("table/lang=en/time=12%3A30/year=2024/part-0.parquet")
    {'lang': 'en', 'time': '12:30', 'year': 2024}
    """
    folders = (path.partition("?")[0] if is_web(path) else path).split("/")[:-1]
    pairs = (folder.partition("=") for folder in folders)
    return {unquote(name): _typed(value) for name, sign, value in pairs if name and sign}


def _typed(text: str) -> str | int | float | None:
    if text == NULL:
        return None
    text = unquote(text)
    for kind in (int, float):
        with suppress(ValueError):
            if str(number := kind(text)) == text and math.isfinite(number):
                return number
    return text


# Pictures as text: base64, alone or in a data: URL.

DATA_URL: Final = re.compile(r"\s*data:[^,]{0,200}?(;base64)?,", re.IGNORECASE)
LEAST: Final = 32
"""Characters of a base64 text; the smallest pictures have more."""
URL_SAFE: Final = str.maketrans("-_", "+/", " \t\r\n")
"""From the alphabet of URLs, without line breaks."""


def is_picture_text(text: str) -> bool:
    """Return True for a text that begins as a picture in base64 or a data: URL, and not as a path."""
    head = text[:64].translate(URL_SAFE)[:24]
    return DATA_URL.match(text) is not None or (len(text) >= LEAST and is_picture(_decode(head) or b""))


def picture_in(text: str) -> bytes | None:
    """Return the bytes of a picture in base64 or a data: URL; None if they are damaged."""
    mark = DATA_URL.match(text)
    body = text[mark.end() :] if mark else text
    return unquote_to_bytes(body) if mark and not mark[1] else _decode(body.translate(URL_SAFE))


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return None
