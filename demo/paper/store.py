"""Results of runs, RESULTS/KEY-SEED.parquet: all that tables and intervals need, without data and trained models.

A file has one row per metric, with its value, its chance level and, for rows of the main table, the values of the held-out
items of which it is the mean (see `trainer.evaluation.metrics.items`); units that are the items themselves are left out. The
metadata say what a file depends on, the settings of the training, and how long and where it was made.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from trainer.evaluation.task import TaskResult

KEY: Final = b"hypergrit"  # of the metadata of a file
ITEMS: Final = {"reduction": pa.string(), "values": pa.list_(pa.float64()), "units": pa.list_(pa.int64())}
SCHEMA: Final = pa.schema(
    {"task": pa.string(), "metric": pa.string(), "value": pa.float64(), "chance": pa.float64()} | ITEMS
)
LEFT_OUT: Final = re.compile(r"paper/|_micro|LCA|P_H|R_H|himo")  # metrics whose intervals no table needs
PAGE_BYTES: Final = 1 << 26  # metrics of the same scores, such as auc and ap, compress well if they share a page
BROKEN: Final = (OSError, ValueError, KeyError, TypeError, pa.ArrowException)


def write_result(
    path: Path, results: Mapping[str, Mapping[str, TaskResult]], facts: Mapping[str, Any], items: bool
) -> None:
    """Write the results of tasks, by the prefix of their metrics and the task, with their items if `items`."""
    rows = [
        {"task": task, "metric": f"{prefix}{name}", "value": value, "chance": result.chance.get(name)}
        | (columns(result, name) if items and not LEFT_OUT.search(name) else {})
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


def columns(result: TaskResult, metric: str) -> dict[str, Any]:
    """The columns of the items of a metric; empty without items, and for areas under curves.

    Units are numbered in order of appearance: the numbers that a task gives them may depend on the folder of its data.
    """
    items = result.items.get(metric)
    if items is None or items.reduction != "mean":
        return {}
    units, _ = pd.factorize(items.units)
    alone = np.array_equal(units, np.arange(len(units)))
    return {"reduction": items.reduction, "values": items.values, "units": None if alone else units}


def read_facts(path: Path) -> dict[str, Any]:
    """The facts about a run. Raises one of BROKEN for a file that is missing or damaged."""
    facts: dict[str, Any] = json.loads(pq.read_metadata(path).metadata[KEY])
    return facts


def read_result(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read the metrics of a run by TASK:METRIC, and the facts about it.

    Raises UserError for a file that is missing or damaged.
    """
    try:
        found = pq.read_table(path, schema=SCHEMA).to_pandas()
        return found.set_index(found["task"] + ":" + found["metric"]), read_facts(path)
    except BROKEN as error:
        raise UserError(f"{path} cannot be read: {error}; delete it and run again") from error


def has_result(path: Path, identity: Mapping[str, Any]) -> bool:
    """True if the result of a run is there, and was made with the same settings and data."""
    try:
        return bool(read_facts(path)["identity"] == json.loads(json.dumps(identity)))
    except BROKEN:
        return False
