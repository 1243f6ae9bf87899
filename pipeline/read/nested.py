"""What an input holds beside its own columns: fields of nested values, columns in names of folders, pictures as text."""

import base64
import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from hypergrit_common.image_header import is_picture
from pipeline.read.roots import is_web

# Fields of nested columns by names such as `image.url` and `conversations[1].value`.

INDEX: Final = re.compile(r"\[(-?\d+)\]\.?")
END: Final = re.compile(r"[.\[]")


def look_up(value: Any, path: str) -> Any:
    """Return the part of `value` that `path` names; of an Arrow type, the type of that part.

    If names contain dots, the longest name that fits is taken. A list without an index in the path gives a list with the
    part of each item. Text is parsed as JSON. Raises LookupError if there is no such part.

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
    if pa.types.is_struct(kind):
        return _field({field.name: field.type for field in kind}, path)
    if pa.types.is_map(kind):
        return kind.item_type
    if hasattr(kind, "value_type"):  # of lists and dictionaries
        return look_up(kind.value_type, path)
    if has_bytes(kind) or is_text(kind):
        return kind  # perhaps of JSON, of which the type tells nothing
    raise LookupError(path)


def _field(fields: Any, path: str) -> Any:
    if not isinstance(fields, Mapping):
        raise LookupError(path)
    name = root_of(path, fields)
    rest = path[len(name) :]
    return look_up(fields[name], rest[1:] if rest.startswith(".") else rest)


def root_of(path: str, names: Collection[str]) -> str:
    """Return the longest of `names` with which a path begins. Raises LookupError."""
    ends = [len(path), *reversed([found.start() for found in END.finditer(path)])]
    if (found := next((path[:end] for end in ends if path[:end] in names), None)) is None:
        raise LookupError(path)
    return found


# Types of Arrow.


def types_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the types of columns by their names."""
    return dict(zip(schema.names, schema.types, strict=True))


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

WHOLE_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")


@lru_cache(maxsize=4096)
def path_columns(path: str) -> Mapping[str, str | int | None]:
    """Return the columns that the names of the folders of a file have. Callers do not change the result.

    >>> path_columns("table/lang=en/time=12%3A30/year=2024/month=05/part-0.parquet")
    {'lang': 'en', 'time': '12:30', 'year': 2024, 'month': '05'}
    """
    folders = (path.partition("?")[0] if is_web(path) else path).split("/")[:-1]
    pairs = (folder.partition("=") for folder in folders)
    found = {unquote(name): unquote(value) for name, sign, value in pairs if name and sign}
    values = {name: int(text) if WHOLE_NUMBER.fullmatch(text) else text for name, text in found.items()}
    return {name: None if text == "__HIVE_DEFAULT_PARTITION__" else text for name, text in values.items()}


# Pictures as text: base64, alone or in a data: URL, hexadecimal digits, or Python's text of bytes.

DATA_URL: Final = re.compile(r"^data:[^,]{0,200};base64,", re.IGNORECASE)
HEX: Final = re.compile(r"(?:\\x|0x)?((?:[0-9a-f]{2}){8,})", re.IGNORECASE)
PLAIN: Final = str.maketrans("-_", "+/", " \t\r\n")


def holds_picture(value: str | bytes) -> bool:
    """Return True for the bytes of a picture, and for text as `holds_text_of_picture`."""
    return (isinstance(value, bytes) and is_picture(value)) or holds_text_of_picture(value)


def holds_text_of_picture(value: str | bytes) -> bool:
    """Return True for a text that begins as a picture, of 30 characters or more, or as a data: URL of one."""
    text = _unquoted(value[:300])
    return bool(DATA_URL.match(text)) or (len(text) >= 30 and is_picture(picture_in(text[:24]) or b""))


def picture_in(value: str | bytes) -> bytes | None:
    """Return the bytes of a picture as text; None if they are damaged."""
    text = _unquoted(value)
    plain = DATA_URL.sub("", text, 1).translate(PLAIN)
    try:
        if found := HEX.fullmatch(plain):
            return bytes.fromhex(found[1])
        if "\\" in text:
            return text.encode("latin-1").decode("unicode_escape", "ignore").encode("latin-1")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return None


def _unquoted(value: str | bytes) -> str:
    text = (value if isinstance(value, str) else value.decode("latin-1")).strip()
    return text[2:].removesuffix(text[1]) if text[:2] in ("b'", 'b"') else text
