"""Results of runs, RESULTS/KEY-SEED.parquet: all that tables and intervals need, without data and trained models.

A file has one row per metric, with its value, its chance level and, for rows of the main table, the values of the held-out
items behind it (see `trainer.evaluation.metrics.items`), but for areas under curves. Units that are the items themselves
and marks of true pairs are left out, and filled in by `read_result`. The metadata say what a file depends on, the settings
of the training, and how long and where it was made. A study made on several machines, or in several sessions, collects the
files of all of them in one folder.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.items import Items, from_arrays
from trainer.evaluation.task import TaskResult

KEY: Final = b"hypergrit"
"""Key of the metadata of a file."""
SCHEMA: Final = pa.schema(
    [
        ("task", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("chance", pa.float64()),
        ("reduction", pa.string()),
        ("values", pa.list_(pa.float64())),
        ("units", pa.list_(pa.int64())),
    ]
)
LEFT_OUT: Final = re.compile(r"paper/|_micro|LCA|P_H|R_H|himo")
"""Metrics without items, since no table needs their intervals."""
PAGE_BYTES: Final = 1 << 26
"""Size of a page: metrics of the same scores, such as auc and ap, compress to the size of one if they share a page."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The metrics of a run, their chance levels and their items, by TASK:METRIC."""

    metrics: Mapping[str, float]
    chance: Mapping[str, float]
    items: Mapping[str, Items]
    facts: Mapping[str, Any]
    """`identity` and `settings` of the run, `machine`, `version`, and the seconds of `train` and `evaluate`."""


def write_result(
    path: Path, results: Mapping[str, Mapping[str, TaskResult]], facts: Mapping[str, Any], items: bool
) -> None:
    """Write the results of tasks, by the prefix of their metrics and the task, with their items if `items`."""
    rows = [
        {"task": task, "metric": f"{prefix}{name}", "value": value, "chance": result.chance.get(name)}
        | (columns(result.items.get(name)) if items and not LEFT_OUT.search(name) else {})
        for prefix, found in results.items()
        for task, result in found.items()
        for name, value in result.metrics.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"compression": "zstd", "compression_level": 19, "use_dictionary": False, "data_page_size": PAGE_BYTES}
    with (
        atomic_write(path) as draft,
        pq.ParquetWriter(draft, SCHEMA, store_schema=False, write_statistics=False, **options) as writer,
    ):
        writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
        writer.add_key_value_metadata({KEY: json.dumps(facts, sort_keys=True).encode()})


def columns(items: Items | None) -> dict[str, Any]:
    """The columns of the items of a metric; empty without items, and for areas under curves.

    Units are numbered in order of appearance: the numbers that a task gives them may depend on the folder of its data.
    """
    if items is None or items.reduction != "mean":
        return {}
    _, first, place = np.unique(items.units, return_index=True, return_inverse=True)
    units = first.argsort().argsort()[place]
    alone = np.array_equal(units, np.arange(len(units)))
    return {"reduction": items.reduction, "values": items.values, "units": None if alone else units}


def read_result(path: Path) -> Result:
    """Read the result of a run. Raises UserError for a file that is missing or damaged."""
    try:
        table = pq.read_table(path)
        facts = json.loads(pq.read_metadata(path).metadata[KEY])
        rows = table.cast(SCHEMA).drop_columns(["values", "units"]).to_pylist()
        names = [f"{row['task']}:{row['metric']}" for row in rows]
        items = {
            name: from_arrays({"reduction": np.array(row["reduction"]), **arrays_of(table, number)})
            for number, (name, row) in enumerate(zip(names, rows, strict=True))
            if row["reduction"] is not None
        }
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read: {error}; delete it and run again") from error
    return Result(
        metrics={name: row["value"] for name, row in zip(names, rows, strict=True) if row["value"] is not None},
        chance={name: row["chance"] for name, row in zip(names, rows, strict=True) if row["chance"] is not None},
        items=items,
        facts=facts,
    )


def arrays_of(table: pa.Table, row: int) -> dict[str, Any]:
    """The items of a row of the table as numpy arrays."""
    values, units = (table[name][row] for name in ("values", "units"))
    found = values.values.to_numpy(zero_copy_only=False)
    owners = units.values.to_numpy(zero_copy_only=False) if units.is_valid else np.arange(len(found))
    return {"values": found, "units": owners, "is_true": np.ones(len(found), bool)}


def has_result(path: Path, identity: Mapping[str, Any]) -> bool:
    """True if the result of a run is there, and was made with the same settings and data."""
    try:
        metadata = pq.read_metadata(path).metadata
        return bool(json.loads(metadata[KEY])["identity"] == json.loads(json.dumps(identity)))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return False
