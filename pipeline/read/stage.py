"""Records of any format as rows of the READ schema."""

import json
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from common.errors import UserError
from pipeline.read.config import ReadConfig
from pipeline.read.formats import IMAGE, records
from pipeline.read.types import BadRecord, Record, ShardPlan
from schemas.rows import GIVEN_BOX, READ
from schemas.status import DROPPED, KEPT
from schemas.table import conform

URL_NAMES: Final = ("url", "image_url", "link")
CAPTION_NAMES: Final = ("caption", "text", "alt_text", "alt", "title")
ID_NAMES: Final = ("id", "uid", "sample_id", "image_id", "key")
BOX_FIELDS: Final = tuple(item.name for item in GIVEN_BOX)
GRIT_COLUMNS: Final = ("noun_chunks", "ref_exps")


def read_shard(plan: ShardPlan, config: ReadConfig) -> pa.Table:
    """The plan's rows, keyed by their number in the whole input; what cannot be read is a dropped row, not an error.

    Raises UserError if a file has gone, or holds fewer rows than when it was planned.
    """
    rows: list[dict[str, Any]] = []
    for piece in plan.pieces:
        before = len(rows)
        for i, (line, record) in enumerate(records(piece, partial(text_columns, config=config))):
            key = f"{plan.first_row + len(rows):012d}"
            place = {"key": key, "source": piece.path, "source_row": piece.first_row + i, "status": KEPT}
            try:
                rows.append(place | _to_row(record, config))
            except BadRowError as error:
                where = f"{piece.path}, line {line}" if line else f"{piece.path}, row {piece.first_row + i}"
                rows.append(place | _dropped("bad_row", f"{where}: {error}"))
        if len(rows) - before != piece.n_rows:
            raise UserError(f"{piece.path} has changed while it was read; start again on a file that stays as it is")
    return conform(pa.Table.from_pylist(rows, schema=READ), READ)


class BadRowError(ValueError):
    """A record that is no row: the message says what is wrong with it."""


def find_column(names: Iterable[str], wanted: str | None, known: Sequence[str]) -> str | None:
    """The wanted column if it is there, else the first of the known names, whatever its case."""
    if wanted is not None:
        return wanted if wanted in names else None
    folded = {name.lower(): name for name in names}
    return next((folded[name] for name in known if name in folded), None)


def own_columns(names: Iterable[str], config: ReadConfig) -> dict[str, str | None]:
    """Which of the columns `names` become our URL, caption and id."""
    names = list(names)
    return {
        "url": find_column(names, config.url_column, URL_NAMES),
        "caption_original": find_column(names, config.caption_column, CAPTION_NAMES),
        "id": find_column(names, config.id_column, ID_NAMES),
    }


def text_columns(names: Iterable[str], config: ReadConfig) -> set[str]:
    """Of the columns `names` those that hold our URL, caption and id."""
    return {name for name in own_columns(names, config).values() if name is not None}


def check_columns(path: str, names: list[str] | None, config: ReadConfig) -> None:
    """Raise UserError unless `names` hold a URL and a caption column; None, for formats without columns, passes."""
    if names is None:
        return
    for role, wanted, known in (
        ("url", config.url_column, URL_NAMES),
        ("caption", config.caption_column, CAPTION_NAMES),
    ):
        if find_column(names, wanted, known) is None:
            looked = wanted or ", ".join(known)
            raise UserError(
                f"{path} has no {role} column (looked for {looked}; it has {', '.join(names) or 'none'}); "
                f"set read.{role}_column=NAME"
            )


def _to_row(record: Record | BadRecord, config: ReadConfig) -> dict[str, Any]:
    if isinstance(record, BadRecord):
        raise BadRowError(record.message)
    image = record.pop(IMAGE, None)
    image = image if isinstance(image, bytes) else None  # JSON may use the name, but never for bytes
    names = own_columns(record, config)
    url, caption, own_id = (record[name] if name is not None else None for name in names.values())
    row: dict[str, Any] = {
        "url": _text(url, "the URL") or None,
        "caption_original": _text(caption, "the caption"),
        "id": str(own_id) if isinstance(own_id, int | float) else _text(own_id, "the id"),
        "image": image,
        "given_noun_chunks": _given_boxes(record, "noun_chunks"),
        "given_ref_exps": _given_boxes(record, "ref_exps"),
    }
    taken = {*names.values(), *GRIT_COLUMNS}
    others = {name: value for name, value in record.items() if name not in taken}
    try:
        row["extra"] = json.dumps(_json_value(others), sort_keys=True) if others else None
    except RecursionError:
        raise BadRowError("values are nested too deeply") from None
    return row if row["url"] or image else row | _dropped("missing_url", "")


def _dropped(reason: str, detail: str) -> dict[str, Any]:
    return {"status": DROPPED, "stage": "read", "reason": reason, "detail": _utf8(detail)[:500] or None}


def _text(value: Any, what: str) -> str | None:
    """`value` if it is text or null, or UTF-8 that its column calls bytes; lone surrogates are no text."""
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    if not isinstance(value, str):
        raise BadRowError(f"{what} is a {type(value).__name__}, not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRowError(f"{what} is not valid Unicode") from None
    return value


def _given_boxes(record: Record, column: str) -> list[dict[str, Any]] | None:
    """GRIT's lists of [start, end, x_min, y_min, x_max, y_max, score], also as JSON text (CSV), by name."""
    value = record.get(column)
    try:
        entries = json.loads(value or "null") if isinstance(value, str) else value
        return None if entries is None else [_given_box(entry) for entry in entries]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadRowError(f"{column} does not hold GRIT's lists of 7 numbers: {error}") from None


def _given_box(entry: Sequence[Any]) -> dict[str, Any]:
    """One of GRIT's lists by name. Grounders put edges a little outside the image; pixels are far outside.

    Raises ValueError, TypeError or OverflowError.
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
    """`value` as strict JSON in UTF-8 can hold it: no NaN, no lone surrogates, no bytes, dates as text."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {_utf8(str(key)): _json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return _utf8(str(value))


def _utf8(text: str) -> str:
    """`text` with a question mark for each lone surrogate, which JSON may spell (\\ud800) but UTF-8 lacks."""
    return text.encode(errors="replace").decode()
