"""Stage `read`: records of any format as rows of the READ schema."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from common.errors import UserError
from pipeline.faults.fault import Fault
from pipeline.read.config import ReadConfig
from pipeline.read.formats import read_rows
from pipeline.read.takedown import refuse_urls
from pipeline.read.types import IMAGE, BadRecord, Piece, Record, ShardPlan
from pipeline.read.unchanged import changed, check_unchanged
from schemas.rows import GIVEN_BOX, READ
from schemas.status import DROPPED, INTERNAL_ERROR, KEPT
from schemas.table import conform

URL_NAMES: Final = ("url", "image_url", "link")
CAPTION_NAMES: Final = ("caption", "text", "alt_text", "alt", "title")
ID_NAMES: Final = ("id", "uid", "sample_id", "image_id", "key")
BOX_FIELDS: Final = tuple(item.name for item in GIVEN_BOX)
GRIT_COLUMNS: Final = ("noun_chunks", "ref_exps")
PART_BYTES: Final = 64_000_000
"""Bytes of images after which the rows that have been read are handed on."""


def read_shard(plan: ShardPlan, config: ReadConfig) -> pa.Table:
    r"""Read the rows of a shard; a row that cannot be read is in the table as a dropped row.

    The key of a row is its index in the input. All images of a tar are in the table; `read_parts` bounds the memory.
    Raises UserError if a file no longer exists, cannot be read, or has fewer rows than when it was planned.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from pipeline import ReadConfig, plan_shards, read_shard
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "pairs.jsonl")
    ...     _ = file.write_text('{"url": "http://example.org/1.jpg", "caption": "a dog"}\n{"caption": "a cat"}\n')
    ...     (plan,) = plan_shards(str(file), rows_per_shard=1000, limit=None, config=ReadConfig())
    ...     table = read_shard(plan, ReadConfig())
    >>> [(row["key"], row["status"], row["reason"]) for row in table.to_pylist()]
    [('000000000000', 'kept', None), ('000000000001', 'dropped', 'missing_url')]
    """
    return pa.concat_tables([table for table, _ in read_parts(plan, config)])


def planned_rows(plan: ShardPlan) -> pa.Table:
    """Return the rows of a shard before they are read: a READ table with nothing but their origin."""
    positions = ((piece, i) for piece in plan.pieces for i in range(piece.n_rows))
    return _to_table([_origin(plan, row, piece, i) for row, (piece, i) in enumerate(positions)])


def read_parts(
    plan: ShardPlan, config: ReadConfig, rows: pa.Table | None = None
) -> Iterator[tuple[pa.Table, list[Fault]]]:
    """Read the rows of a shard like `read_shard`, as tables with PART_BYTES of images, and the rows that raised.

    `rows` are the `planned_rows` to read, all by default; those that are dropped already are left as they are.
    """
    given = None if rows is None else {row["key"]: row for row in rows.to_pylist()}
    part: list[dict[str, Any]] = []
    faults: list[Fault] = []
    n_bytes = n_parts = 0
    for row in _read_rows(plan, config, given, faults):
        part.append(row)
        n_bytes += len(row.get("image") or b"")
        if n_bytes >= PART_BYTES:
            found = refuse_urls(_to_table(part), config.takedown), faults.copy()
            part.clear()
            faults.clear()
            n_bytes, n_parts = 0, n_parts + 1
            yield found
    if part or not n_parts:
        yield refuse_urls(_to_table(part), config.takedown), faults


def _to_table(rows: list[dict[str, Any]]) -> pa.Table:
    return conform(pa.Table.from_pylist(rows, schema=READ), READ)


def _origin(plan: ShardPlan, row: int, piece: Piece, i: int) -> dict[str, Any]:
    key = f"{plan.first_row + row:012d}"
    return {"key": key, "source": piece.path, "source_row": piece.first_row + i, "status": KEPT}


def _read_rows(
    plan: ShardPlan, config: ReadConfig, given: Mapping[str, dict[str, Any]] | None, faults: list[Fault]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a shard, all or those with a key in `given`; add the rows that raised to `faults`."""
    n_before = 0
    for piece in plan.pieces:
        first_key = plan.first_row + n_before - piece.first_row  # key of row 0 of the file, which may be negative

        def is_wanted(row: int, first_key: int = first_key) -> bool:
            return given is None or given.get(f"{first_key + row:012d}", {}).get("status") == KEPT

        n = 0
        try:
            names, convert = partial(text_columns, config=config), partial(_convert, config=config)
            for line, found in read_rows(piece, names, config, convert, is_wanted):
                origin = _origin(plan, n_before + n, piece, n)
                n += 1
                if isinstance(found, dict):
                    yield origin | found
                elif isinstance(found, BadRecord):
                    location = f"line {line}" if line else f"row {origin['source_row']}"
                    yield origin | _dropped("bad_row", f"{piece.path}, {location}: {found.message}")
                elif found is not None:
                    faults.append(Fault(origin["key"], "read", found.detail, found.traceback))
                    yield origin | _dropped(INTERNAL_ERROR, found.detail)
                elif given and origin["key"] in given:
                    yield given[origin["key"]]
        except UserError:
            check_unchanged(piece)  # a change of the file explains the error
            raise
        if n != piece.n_rows:
            raise changed(piece.path)
        check_unchanged(piece)
        n_before += n


def _convert(record: Record | BadRecord, config: ReadConfig) -> dict[str, Any] | BadRecord:
    try:
        return to_row(record, config)
    except BadRowError as error:
        return BadRecord(str(error))


class BadRowError(ValueError):
    """A record that cannot become a row; the message is the reason."""


def find_column(names: Iterable[str], configured: str | None, known: Sequence[str]) -> str | None:
    """The configured column, or if none is configured, the first of `known` in any letter case; None if missing."""
    if configured is not None:
        return configured if configured in names else None
    by_lower_case = {name.lower(): name for name in names}
    return next((by_lower_case[name] for name in known if name in by_lower_case), None)


def map_columns(names: Iterable[str], config: ReadConfig) -> dict[str, str | None]:
    """Map the columns of READ for URL, caption and identifier to columns of the input; None for a missing one."""
    names = list(names)
    return {
        "url": find_column(names, config.url_column, URL_NAMES),
        "caption_original": find_column(names, config.caption_column, CAPTION_NAMES),
        "id": find_column(names, config.id_column, ID_NAMES),
    }


def text_columns(names: Iterable[str], config: ReadConfig) -> set[str]:
    """The columns among `names` that hold URL, caption and identifier."""
    return {name for name in map_columns(names, config).values() if name is not None}


def check_columns(path: str, names: list[str] | None, config: ReadConfig) -> None:
    """Raise UserError unless the file has a URL and a caption column. Tars, with `names=None`, pass."""
    if names is None:
        return
    for role, configured, known in (
        ("url", config.url_column, URL_NAMES),
        ("caption", config.caption_column, CAPTION_NAMES),
    ):
        if find_column(names, configured, known) is None:
            raise UserError(
                f"{path} has no {role} column (looked for {configured or ', '.join(known)}; it has "
                f"{', '.join(names) or 'none'}); set read.{role}_column=NAME"
            )


def to_row(record: Record | BadRecord, config: ReadConfig) -> dict[str, Any]:
    """Convert a record to a row of READ, without its origin. Raises BadRowError for one that cannot become a row."""
    if isinstance(record, BadRecord):
        raise BadRowError(record.message)
    image = record.pop(IMAGE, None)
    if not isinstance(image, bytes):  # the value of a JSON key with the same name
        image = None
    names = map_columns(record, config)
    url, caption, identifier = (record[name] if name is not None else None for name in names.values())
    row: dict[str, Any] = {
        "url": _text(url, "the URL", config.max_url_characters, "max_url_characters") or None,
        "caption_original": _text(caption, "the caption", config.max_row_bytes, "max_row_bytes"),
        "id": _text(_id(identifier), "the id", config.max_row_bytes, "max_row_bytes"),
        "image": image,
        "given_noun_chunks": _given_boxes(record, "noun_chunks", config.max_boxes),
        "given_ref_exps": _given_boxes(record, "ref_exps", config.max_boxes),
    }
    used = {*names.values(), *GRIT_COLUMNS}
    others = {name: value for name, value in record.items() if name not in used}
    try:
        row["extra"] = json.dumps(_json_value(others), sort_keys=True) if others else None
    except RecursionError:
        raise BadRowError("values are nested too deeply") from None
    if row["extra"] and len(row["extra"]) > 2 * config.max_row_bytes:  # JSON may escape characters
        raise BadRowError(f"the other columns have {len(row['extra'])} bytes, more than twice read.max_row_bytes")
    return row if row["url"] or image else row | _dropped("missing_url", "")


def _id(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


def _dropped(reason: str, detail: str) -> dict[str, Any]:
    return {"status": DROPPED, "stage": "read", "reason": reason, "detail": _utf8(detail)[:500] or None}


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
            return {_utf8(str(key)): _json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return _utf8(str(value))


def _utf8(text: str) -> str:
    """Replace each lone surrogate, which JSON can express (\\ud800) but UTF-8 cannot, by a question mark."""
    return text.encode(errors="replace").decode()
