"""Small tables for the tests of single stages."""

from typing import Any

import pyarrow as pa

from pipeline.stages.order import SCHEMAS


def table_after(stage: str, rows: list[dict[str, Any]]) -> pa.Table:
    """An output table of `stage`; missing fields of `rows` are null or have neutral values."""
    schema = SCHEMAS[stage]
    complete = []
    for i, row in enumerate(rows):
        base = {"key": f"{i:012d}", "source": "rows", "source_row": i, "status": "kept"}
        base |= {"caption_original": row.get("caption")}
        complete.append({name: (base | row).get(name) for name in schema.names})
    return pa.Table.from_pylist(complete, schema)
