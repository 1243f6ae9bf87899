"""The time of each stage, added up over shards."""

import json
from collections.abc import Collection, Mapping
from typing import Any, cast

from common.errors import UserError
from common.remote import map_concurrently
from common.text import one_line
from pipeline.write.store import Store
from schemas.files import TIMINGS_FILE
from schemas.manifest import Timings
from schemas.stats import StageSpeed
from schemas.status import STAGES

Speeds = dict[str, list[float]]
"""Stage -> seconds, and rows that entered it."""


def read_object(store: Store, file: str) -> dict[str, Any]:
    """Return the object in a JSON file, {} if it does not exist. Raises UserError if it is damaged."""
    try:
        value = json.loads(store.read(file) or b"{}")
    except (ValueError, RecursionError) as error:
        raise damaged_error(store, file, error) from error
    if not isinstance(value, dict):
        raise damaged_error(store, file, ValueError("it holds no object"))
    return value


def damaged_error(store: Store, file: str, error: Exception) -> UserError:
    """Return the error for a damaged file besides the shards."""
    return UserError(f"{store.url(file)} is damaged ({one_line(error)}); remove it: the shards do not need it")


def sum_timings(store: Store, shards: Collection[int]) -> Speeds:
    """Add up the time of each stage over the shards that have a timings file. Raises UserError if one is damaged."""
    speeds: Speeds = {}
    files = [store.file(TIMINGS_FILE, index) for index in sorted(shards)]
    for timings in map_concurrently(lambda file: cast(Timings, read_object(store, file)), files):
        add_speeds(speeds, {stage: [timing["seconds"], timing["rows"]] for stage, timing in timings.items()})
    return speeds


def read_speeds(store: Store, file: str) -> Speeds | None:
    """Return the sums in the timings of a rollup; None if the file is missing or damaged."""
    try:
        content = store.read(file)
        value = None if content is None else json.loads(content)
        return None if value is None else {str(stage): [float(x), float(n)] for stage, (x, n) in value.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def add_speeds(speeds: Speeds, others: Mapping[str, list[float]]) -> None:
    """Add the time and rows of each stage."""
    for stage, (seconds, n_rows) in others.items():
        total = speeds.setdefault(stage, [0.0, 0.0])
        total[0] += seconds
        total[1] += n_rows


def stage_speeds(speeds: Speeds) -> dict[str, StageSpeed]:
    """Return the sums in the form of stats.json, in the order of the stages."""
    return {
        stage: {
            "seconds": round(seconds, 4),
            "rows": n_rows,
            "rows_per_second": round(n_rows / seconds, 2) if seconds else 0.0,
        }
        for stage in STAGES
        if stage in speeds
        for seconds, n_rows in [speeds[stage]]
    }
