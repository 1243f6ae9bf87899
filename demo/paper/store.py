"""Results of runs, RESULTS/ROW-SEED.parquet: all that tables and intervals need, without data and trained models.

A file has one row per metric, with its value, its chance level, and the values of the held-out items behind it (see
`trainer.evaluation.metrics.items`). Its metadata say what it depends on, and how long and where it was made. A study made on
several machines, or in several sessions, collects the files of all of them in one folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demo.paper.plan import Run, tasks_of
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object
from trainer.evaluation.metrics.items import Items, from_arrays, read_items

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
        ("is_true", pa.list_(pa.bool_())),
    ]
)
PAGE_BYTES: Final = 1 << 26
"""Size of a page: metrics of the same scores, such as auc and ap, compress to the size of one if they share a page."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The metrics of a run, their chance levels and their items, by TASK:METRIC."""

    metrics: Mapping[str, float]
    chance: Mapping[str, float]
    items: Mapping[str, Items]
    facts: Mapping[str, Any]
    """`identity` of the run, `machine`, `version`, and the seconds of `train` and `evaluate`."""


def write_result(run: Run, facts: Mapping[str, Any]) -> None:
    """Write the result of an evaluated run. `facts` are added to its identity.

    Raises UserError, naming the file, for a result of `trainer.evaluate` that is missing or damaged.
    """
    rows: list[dict[str, Any]] = []
    for task in tasks_of(run.seed):
        path = run.evaluated / f"{task}.json"
        try:
            content = read_object(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: {error}; delete {run.evaluation.output} and run again") from error
        found = read_items(path.with_suffix(".npz")) if path.with_suffix(".npz").is_file() else {}
        for name, value in content.get("metrics", {}).items():
            chance = content.get("chance", {}).get(name)
            rows.append({"task": task, "metric": name, "value": value, "chance": chance} | columns(found.get(name)))
    metadata = {KEY: json.dumps({"identity": run.identity, **facts}, sort_keys=True).encode()}
    table = pa.Table.from_pylist(rows, schema=SCHEMA).replace_schema_metadata(metadata)
    run.result.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(run.result) as draft:
        pq.write_table(
            table, draft, compression="zstd", compression_level=19, use_dictionary=False, data_page_size=PAGE_BYTES
        )


def columns(items: Items | None) -> dict[str, Any]:
    """The columns of the items of a metric; empty without items."""
    if items is None:
        return {}
    arrays = {name: getattr(items, name) for name in ("values", "units", "is_true")}
    return {"reduction": items.reduction, **arrays}


def read_result(path: Path) -> Result:
    """Read the result of a run. Raises UserError for a file that is missing or damaged."""
    try:
        table = pq.read_table(path)
        facts = json.loads(table.schema.metadata[KEY])
        rows = table.cast(SCHEMA).drop_columns(["values", "units", "is_true"]).to_pylist()
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
    """The items of a row of the table as numpy arrays, with the units numbered in order of appearance.

    The numbers that a task gives its units may depend on the folder of its data (so did those of version 0.7.0).
    """
    found = {name: table[name][row].values.to_numpy(zero_copy_only=False) for name in ("values", "units", "is_true")}
    _, first, place = np.unique(found["units"], return_index=True, return_inverse=True)
    return found | {"units": first.argsort().argsort()[place]}


def has_result(run: Run) -> bool:
    """True if the result of a run is there, and was made with the same settings and data."""
    try:
        metadata = pq.read_metadata(run.result).metadata
        return bool(json.loads(metadata[KEY])["identity"] == json.loads(json.dumps(run.identity)))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return False


def missing_results(runs: Sequence[Run]) -> list[Run]:
    """The runs that have no result."""
    return [run for run in runs if not has_result(run)]
