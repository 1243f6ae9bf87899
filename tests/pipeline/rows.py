"""Small tables for the tests of single stages."""

from typing import Any

import pyarrow as pa

from schemas.rows import BOUNDARIES


def table_after(stage: str, rows: list[dict[str, Any]]) -> pa.Table:
    """A table as `stage` hands it on; what a row does not say is filled with nulls and neutral values."""
    schema = BOUNDARIES[stage]
    full = []
    for i, row in enumerate(rows):
        base = {"key": f"{i:012d}", "source": "rows", "source_row": i, "status": "kept"}
        base |= {"caption_original": row.get("caption")}
        full.append({name: (base | row).get(name) for name in schema.names})
    return pa.Table.from_pylist(full, schema)
