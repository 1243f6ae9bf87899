"""Functions with which stages add columns and drop rows. A dropped row is marked and stays in the table."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.rows import HEAVY, SCORED
from schemas.status import DROPPED, GIVEN_REMOVALS, KEPT, check_reason


@dataclass(frozen=True)
class Drop:
    """The reason to drop a row (schemas.status.REASONS), and a number or message that explains it."""

    reason: str
    detail: str = ""


def kept_indices(table: pa.Table) -> list[int]:
    """Positions of the rows that no stage has dropped."""
    return pc.indices_nonzero(pc.equal(table["status"], KEPT)).to_pylist()


def set_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Replace the values of column `name`; its type and description are kept."""
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), values)


def drop_rows(
    table: pa.Table,
    stage: str,
    drops: Mapping[int, Drop],
    heavy: Sequence[str] = HEAVY,
    further: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> pa.Table:
    """Mark rows (position -> Drop) as dropped by `stage` and set their columns `heavy` to null.

    Raises ValueError for a reason that is not a drop reason of the stage; `further` as in `check_reason`.
    """
    if not drops:
        return table
    for drop in drops.values():
        check_reason(stage, drop.reason, further)
    columns = {name: table[name].to_pylist() for name in ("status", "stage", "reason", "detail")}
    for i, drop in drops.items():
        columns["status"][i], columns["stage"][i] = DROPPED, stage
        columns["reason"][i], columns["detail"][i] = drop.reason, drop.detail or None
    for name, values in columns.items():
        table = set_column(table, name, pa.array(values, pa.string()))
    lost = pa.array([i in drops for i in range(table.num_rows)])
    for name in heavy:
        column = table[name]
        table = set_column(table, name, pc.if_else(lost, pa.scalar(None, column.type), column))
    return table


def keep_rows(table: pa.Table, rows: pa.ChunkedArray) -> pa.Table:
    """Undo `drop_rows` for the rows of a mask, but for the columns that it emptied."""
    for name, value in (("status", KEPT), ("stage", None), ("reason", None), ("detail", None)):
        table = set_column(table, name, pc.if_else(rows, pa.scalar(value, pa.string()), table[name]))
    return table


def add_columns(table: pa.Table, schema: pa.Schema, values: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Add the columns of `schema` that `table` lacks.

    `values` maps the position of a row to its new fields; all other new fields are null. Raises ValueError if the
    result does not have the columns of `schema`, and ArrowInvalid if a value does not fit its type.
    """
    n = table.num_rows
    columns: dict[str, Sequence[Any] | pa.ChunkedArray] = {name: table[name] for name in table.schema.names}
    for new in schema:
        if new.name not in columns:
            columns[new.name] = pa.array([values.get(i, {}).get(new.name) for i in range(n)], new.type)
    return conform(pa.table({name: columns[name] for name in schema.names}), schema)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast `table` to `schema`, including the descriptions of its fields.

    Raises ValueError for columns that are missing, unknown or in another order, and for nulls in a column that is not
    nullable. Raises ArrowInvalid for a value that does not fit its type.
    """
    if table.schema.names != schema.names:
        missing, extra = set(schema.names) - set(table.schema.names), set(table.schema.names) - set(schema.names)
        raise ValueError(
            f"the columns of the table differ from its schema: missing {sorted(missing)}, unknown {sorted(extra)}; "
            "if both lists are empty, the order differs"
        )
    for item in schema:
        if not item.nullable and table[item.name].null_count:
            raise ValueError(f"column {item.name!r} has {table[item.name].null_count} nulls, but is not nullable")
    return table.cast(schema)


# What holds in the rows of each stage besides the types of their columns, and what all readers of rows rely on.

PARTNERS: Final = {
    "box_scores": "boxes", "has_expression": "boxes", "presence": "noun_chunks", "given_chunks": "given_noun_chunks",
}  # fmt: skip
"""List -> the list that is as long in all rows in which the first is not null."""
INDICES: Final = (
    ("boxes", "phrase", "noun_chunks", 0),
    ("ref_exps", "chunk", "noun_chunks", 0),
    ("given_chunks", "", "noun_chunks", -len(GIVEN_REMOVALS)),
    ("noun_chunks", "root", "tokens", -1),
)
"""List, its field that is an index in another list, that list, and the least index."""
SIDES: Final = ("width", "height", "original_width", "original_height")

Rows = NDArray[Any]


def check_rows(batch: pa.RecordBatch, where: str = "") -> None:
    """Raise ValueError for a row with a value that it cannot have; the batch has columns of SCORED, of which all count."""
    for rows, text in _wrong_rows(batch, {*batch.schema.names} & {*SCORED.names}):
        if len(rows):
            raise ValueError(f"row {rows[0]}{where} {text}")


def _wrong_rows(batch: pa.RecordBatch, names: set[str]) -> Iterator[tuple[Rows, str]]:
    """Yield rows and what is wrong with them."""
    for name in sorted(names):
        yield _unset(batch[name], SCORED.field(name)), f"has a null, NaN or infinity in {name}"
    for name in sorted(names & {*SIDES}):
        yield _places(pc.less(batch[name], 1)), f"has a {name} below 1"
    if "sha256" in names:
        yield (
            _places(pc.invert(pc.match_substring_regex(batch["sha256"], r"\A[0-9a-f]{64}\z"))),
            "has a sha256 that is none",
        )
    for name in sorted(names & {"boxes", "box_scores"}) if "status" in names else ():
        yield _places(pc.and_(pc.equal(batch["status"], KEPT), batch[name].is_null())), f"is kept without {name}"
    for name, other in PARTNERS.items():
        if {name, other} <= names:
            lengths = pc.fill_null(pc.list_value_length(batch[other]), 0)
            differ = pc.not_equal(pc.list_value_length(batch[name]), lengths)
            yield _places(differ), f"has not one of {name} for each of {other}"
    for name, field, other, least in INDICES:
        if {name, other} <= names:
            rows, found = _items(batch[name], field)
            n = pc.fill_null(pc.list_value_length(batch[other]), 0).to_numpy()[rows]
            is_beyond = (found >= n) & ((n > 0) | (other != "tokens"))  # without a parse, no reader uses the root
            yield rows[(found < least) | is_beyond], f"has a number in {name} that is none of {other}"
    for name in sorted(names & {"noun_chunks", "ref_exps"}) if "caption" in names else ():
        (rows, start), (_, end) = _items(batch[name], "start"), _items(batch[name], "end")
        n = pc.fill_null(pc.utf8_length(batch["caption"]), 0).to_numpy()[rows]
        yield rows[(start < 0) | (start >= end) | (end > n)], f"has a span in {name} that is not within the caption"


def _unset(values: pa.Array, field: pa.Field) -> Rows:
    """Return the places of values that are NaN or infinite, or null without `field` being nullable; of their items too."""
    kind: Any = field.type
    if values.null_count and not field.nullable:
        return _places(values.is_null())
    if pa.types.is_floating(kind):
        return _places(pc.invert(pc.is_finite(values)))
    if pa.types.is_struct(kind):
        return np.concatenate([_unset(values.field(i), kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind) and len(places := _unset(pc.list_flatten(values), kind.value_field)):
        return pc.list_parent_indices(values).to_numpy()[places]
    return np.zeros(0, np.uint64)


def _items(lists: pa.Array, field: str) -> tuple[Rows, Rows]:
    """Return the row of each item, and the item or its field."""
    items = pc.list_flatten(lists)
    return pc.list_parent_indices(lists).to_numpy(), (items.field(field) if field else items).to_numpy()


def _places(is_there: pa.Array) -> Rows:
    return pc.indices_nonzero(is_there).to_numpy()
