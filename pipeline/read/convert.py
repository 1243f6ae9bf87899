"""Convert a record of any format to a row of the READ schema."""

import json
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pipeline.read.captions import choose_caption
from pipeline.read.columns import Columns, find_columns
from pipeline.read.config import ReadConfig
from pipeline.read.formats import format_of
from pipeline.read.roots import Location, RefusedError, Roots, has_scheme, is_web
from pipeline.read.types import IMAGE, BadRecord, BadRowError, Record
from pipeline.read.where import WhereError
from schemas.rows import GIVEN_BOX
from schemas.status import DROPPED

BOX_FIELDS: Final = tuple(item.name for item in GIVEN_BOX)
GRIT_COLUMNS: Final = ("noun_chunks", "ref_exps")
LOCATION: Final = "location"
"""Key of a row for the Location of its image, until the image is read."""


class Context(NamedTuple):
    """Facts about an input file that the conversion of its rows needs."""

    config: ReadConfig
    roots: Roots
    source: str


def to_row(record: Record | BadRecord, context: Context) -> dict[str, Any]:
    """Convert a record to a row of READ, without its origin. Raises BadRowError for one that cannot become a row.

    If the image is to be read from a file, the row has its place under LOCATION.
    """
    if isinstance(record, BadRecord):
        raise BadRowError(record.message)
    config = context.config
    image = record.pop(IMAGE, None)
    if not isinstance(image, bytes | Location):  # the value of a JSON key with the same name
        image = None
    columns = find_columns(record, config, context.source)
    is_selected = _is_selected(record, context)
    url = _text(_value(record, columns.url), "the URL", config.max_url_characters, "max_url_characters") or None
    found, path = _image(record, columns, config)
    image = image or found
    row: dict[str, Any] = {
        "url": url,
        "caption_original": _caption(record, columns, url, config),
        "id": _text(_id(_value(record, columns.id)), "the id", config.max_row_bytes, "max_row_bytes"),
        "given_noun_chunks": _given_boxes(record, "noun_chunks", config.max_boxes),
        "given_ref_exps": _given_boxes(record, "ref_exps", config.max_boxes),
        "extra": _extra(record, columns, config),
    }
    if not is_selected:
        return row | dropped("not_selected", "")
    if url and is_web(url) and not context.roots:  # without a place where it may be read, the path is no use
        path = None
    if image is None and (place := path or (url if url and has_scheme(url) and not is_web(url) else None)):
        if is_web(place):
            return row | {"url": url or place}
        if context.roots or path:
            try:
                image = context.roots.locate(place, context.source)
            except RefusedError as error:
                return row | dropped("image_refused", f"{place[:300]}: {error}")
    if isinstance(image, Location):
        return row | {LOCATION: image}
    return row | {"image": image} if url or image else row | dropped("missing_url", "")


def dropped(reason: str, detail: str) -> dict[str, Any]:
    """Return the columns of a row that `read` drops."""
    return {"status": DROPPED, "stage": "read", "reason": reason, "detail": utf8(detail)[:500] or None}


def _value(record: Record, name: str | None) -> Any:
    return record[name] if name is not None else None


def _is_selected(record: Record, context: Context) -> bool:
    """Return True for a row that `read.where` selects. An empty field of a CSV or TSV file is a missing value."""
    where = context.config.selection
    if where is not None and format_of(context.source) in ("csv", "tsv"):
        record = {name: record.get(name) or None for name in where.columns}
    try:
        return where is None or where(record)
    except WhereError as error:
        raise BadRowError(f"read.where: {error}") from None


def _image(record: Record, columns: Columns, config: ReadConfig) -> tuple[bytes | None, str | None]:
    """Return the bytes of an image, or its path or URL. A dictionary {bytes, path} is that of Hugging Face datasets."""
    value = _value(record, columns.image)
    path = _value(record, columns.path)
    if isinstance(value, dict):
        path = value.get("path") if value.get("path") is not None else path
        value = value.get("bytes")
    if isinstance(value, str):
        path, value = value, None
    if value is not None and not isinstance(value, bytes):
        raise BadRowError(f"the image is a {type(value).__name__}, not bytes or a path")
    if value is not None and len(value) > config.max_image_bytes:
        raise BadRowError(f"the image has {len(value)} bytes, more than read.max_image_bytes={config.max_image_bytes}")
    if value:
        return value, None
    return None, _text(path, "the path of the image", config.max_url_characters, "max_url_characters") or None


def _caption(record: Record, columns: Columns, url: str | None, config: ReadConfig) -> str | None:
    values = [record[name] for name in columns.captions if name in record]
    if len(values) > 1 or isinstance(next(iter(values), None), list | tuple):
        if any(record.get(name) is not None for name in GRIT_COLUMNS) and config.captions != "first":
            raise BadRowError("noun_chunks refer to one caption, but the row has several; set read.captions=first")
        value = choose_caption(values, url, config)
    else:
        value = values[0] if values else None
    return _text(value, "the caption", config.max_row_bytes, "max_row_bytes")


def _extra(record: Record, columns: Columns, config: ReadConfig) -> str | None:
    """Return the other columns as JSON. Raises BadRowError if they are too long or nested too deeply."""
    used = {*columns.used(), *GRIT_COLUMNS}
    others = {name: value for name, value in record.items() if name not in used}
    value = _value(record, columns.image)
    if columns.image is not None and isinstance(value, dict) and value.get("path"):
        others[columns.image] = {"path": value["path"]}
    elif columns.image is not None and isinstance(value, str):
        others[columns.image] = value
    try:
        text = json.dumps(_json_value(others), sort_keys=True) if others else None
    except RecursionError:
        raise BadRowError("values are nested too deeply") from None
    if text and len(text) > 2 * config.max_row_bytes:  # JSON may escape characters
        raise BadRowError(f"the other columns have {len(text)} bytes, more than twice read.max_row_bytes")
    return text


def _id(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


def _text(value: Any, what: str, most: int, key: str) -> str | None:
    """Return text or None unchanged, and UTF-8 bytes as text.

    Raises BadRowError for other types, for more than `most` characters (read.`key`), and for invalid Unicode, lone
    surrogates included; `what` names the value.
    """
    if value is None:
        return None
    if isinstance(value, bytes | str) and len(value) > most:
        raise BadRowError(f"{what} has {len(value)} characters, more than read.{key}={most}")
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    if not isinstance(value, str):
        raise BadRowError(f"{what} is a {type(value).__name__}, not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRowError(f"{what} is not valid Unicode") from None
    return value


def _given_boxes(record: Record, column: str, most: int) -> list[dict[str, Any]] | None:
    """The boxes of a GRIT column: lists [start, end, x_min, y_min, x_max, y_max, score], or their JSON text."""
    value = record.get(column)
    try:
        entries = json.loads(value or "null") if isinstance(value, str) else value
        if entries is not None and len(entries) > most:
            raise BadRowError(f"{column} has {len(entries)} boxes, more than read.max_boxes={most}")
        return None if entries is None else [_given_box(entry) for entry in entries]
    except BadRowError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadRowError(f"{column} does not hold GRIT's lists of 7 numbers: {error}") from None


def _given_box(entry: Sequence[Any]) -> dict[str, Any]:
    """Convert one list of GRIT to a schemas.rows.GIVEN_BOX.

    Edges slightly outside the image are accepted because grounders predict them; edges in pixels are far outside and
    are an error. Raises ValueError, TypeError or OverflowError for an invalid list.
    """
    box = dict(zip(BOX_FIELDS, map(float, entry), strict=True))
    start, end, x_min, y_min, x_max, y_max, score = box.values()
    if not (abs(start) < 2**31 and abs(end) < 2**31):
        raise ValueError("an offset is out of range")
    if not (-1 <= x_min <= x_max <= 2 and -1 <= y_min <= y_max <= 2):
        raise ValueError("edges must be fractions of the image, the smaller one first")
    if not -1e-6 <= score <= 1 + 1e-6:
        raise ValueError(f"a score is {score}, not within [0, 1]")
    return box | {"start": int(start), "end": int(end), "score": min(max(score, 0.0), 1.0)}


def _json_value(value: Any) -> Any:
    """Convert a value to strict JSON in UTF-8: NaN becomes null, a lone surrogate "?", a date text."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {utf8(str(key)): _json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item) for item in value]
        case None | bool() | int() | float():
            return value
        case bytes():  # a text column of binary type that `where` or the captions use
            return value.decode(errors="replace")
        case _:
            return utf8(str(value))


def utf8(text: str) -> str:
    """Replace each lone surrogate, which JSON can express (\\ud800) but UTF-8 cannot, by a question mark."""
    return text.encode(errors="replace").decode()
