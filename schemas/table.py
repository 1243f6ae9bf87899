"""Functions with which stages add columns and drop rows. A dropped row is marked and stays in the table."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.rows import HEAVY
from schemas.status import DROPPED, KEPT, check_reason


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
