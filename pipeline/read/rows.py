"""Records of any format as rows of the READ schema."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from common.errors import UserError
from pipeline.read.config import ReadConfig, ShardPlan
from pipeline.read.formats import IMAGE, BadRecord, Record, records
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
        for i, (line, record) in enumerate(records(piece)):
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
    names = {
        "url": find_column(record, config.url_column, URL_NAMES),
        "caption_original": find_column(record, config.caption_column, CAPTION_NAMES),
        "id": find_column(record, config.id_column, ID_NAMES),
    }
    url, caption, own_id = (record[name] if name is not None else None for name in names.values())
    row: dict[str, Any] = {
        "url": _text(url, "the URL") or None,
        "caption_original": _text(caption, "the caption"),
        "id": str(own_id) if isinstance(own_id, int | float) else _text(own_id, "the id"),
        "image": image,
        "given_noun_chunks": _given_boxes(record.get("noun_chunks")),
        "given_ref_exps": _given_boxes(record.get("ref_exps")),
    }
    taken = {*names.values(), *GRIT_COLUMNS}
    others = {name: value for name, value in record.items() if name not in taken}
    try:
        row["extra"] = json.dumps(_json_value(others), sort_keys=True) if others else None
    except RecursionError:
        raise BadRowError("values are nested too deeply") from None
    return row if row["url"] or image else row | _dropped("missing_url", "")


def _dropped(reason: str, detail: str) -> dict[str, Any]:
    safe = detail.encode(errors="replace").decode()[:500]
    return {"status": DROPPED, "stage": "read", "reason": reason, "detail": safe or None}


def _text(value: Any, what: str) -> str | None:
    """`value` if it is text or null; lone surrogates (bytes that were no UTF-8) are no text."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRowError(f"{what} is a {type(value).__name__}, not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRowError(f"{what} is not valid Unicode") from None
    return value


def _given_boxes(value: Any) -> list[dict[str, Any]] | None:
    """GRIT's lists of [start, end, x_min, y_min, x_max, y_max, score], also as JSON text (CSV), by name."""
    try:
        entries = json.loads(value) if isinstance(value, str) else value
        if entries is None:
            return None
        boxes = [dict(zip(BOX_FIELDS, map(float, entry), strict=True)) for entry in entries]
        if not all(math.isfinite(number) and abs(number) < 2**31 for box in boxes for number in box.values()):
            raise ValueError("a number is out of range")
        return [box | {"start": int(box["start"]), "end": int(box["end"])} for box in boxes]
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRowError(f"noun_chunks or ref_exps are not GRIT's lists of 7 numbers: {error}") from None


def _json_value(value: Any) -> Any:
    """`value` as strict JSON can hold it: no NaN, no bytes, dates as text."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {str(key): _json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
