"""Stage `read`: records of any format as rows of the READ schema."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa

from common.errors import UserError
from pipeline.faults.fault import Fault
from pipeline.read.config import ReadConfig
from pipeline.read.convert import Context, dropped, to_row
from pipeline.read.files import with_images
from pipeline.read.roots import Roots
from pipeline.read.rows import read_rows
from pipeline.read.takedown import refuse_urls
from pipeline.read.types import BadRecord, BadRowError, Piece, Record, ShardPlan
from pipeline.read.unchanged import changed, check_unchanged
from schemas.rows import READ
from schemas.status import INTERNAL_ERROR, KEPT
from schemas.table import conform

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
    for row in with_images(_read_rows(plan, config, given, faults), config, faults):
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
    n_before, roots = 0, Roots(config.image_roots)
    for piece in plan.pieces:
        first_key = plan.first_row + n_before - piece.first_row  # key of row 0 of the file, which may be negative

        def is_wanted(row: int, first_key: int = first_key) -> bool:
            return given is None or given.get(f"{first_key + row:012d}", {}).get("status") == KEPT

        n = 0
        try:
            convert = partial(_convert, context=Context(config, roots, piece.path))
            for line, found in read_rows(piece, config, convert, is_wanted):
                origin = _origin(plan, n_before + n, piece, n)
                n += 1
                if isinstance(found, dict):
                    yield origin | found
                elif isinstance(found, BadRecord):
                    location = f"line {line}" if line else f"row {origin['source_row']}"
                    yield origin | dropped("bad_row", f"{piece.path}, {location}: {found.message}")
                elif found is not None:
                    faults.append(Fault(origin["key"], "read", found.detail, found.traceback))
                    yield origin | dropped(INTERNAL_ERROR, found.detail)
                elif given and origin["key"] in given:
                    yield given[origin["key"]]
        except UserError:
            check_unchanged(piece)  # a change of the file explains the error
            raise
        if n != piece.n_rows:
            raise changed(piece.path)
        check_unchanged(piece)
        n_before += n


def _convert(record: Record | BadRecord, context: Context) -> dict[str, Any] | BadRecord:
    try:
        return to_row(record, context)
    except BadRowError as error:
        return BadRecord(str(error))
