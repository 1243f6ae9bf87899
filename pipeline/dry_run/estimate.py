"""Predict a job from a sample of its rows.

An estimate is the value of the sample, scaled to all rows. Its interval of 95 % is a bootstrap (Efron 1979): the rows of
the sample are drawn again with replacement, and for times, the sample shards too; the interval holds the middle 95 % of
the results. What depends on the rows alone is narrowed by the finite population correction, sqrt(1 - n / N): a sample of
all rows leaves no doubt. The share of kept rows has Wilson's interval, which also holds if all rows are kept, or none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.capacity import DOWNLOAD_CPU, MODEL_STAGES, WAITING, Capacity
from pipeline.dry_run.steps import Measured
from pipeline.quality.curve import wilson
from schemas.status import KEPT, STAGES

N_DRAWS: Final = 1000
QUANTILES: Final = (0.025, 0.975)

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]
"""The rows of the sample: name -> values [n]."""


class Estimate(NamedTuple):
    """A prediction with its interval of 95 %."""

    value: float
    low: float
    high: float

    def __mul__(self, factor: float) -> "Estimate":  # type: ignore[override]
        """Scale the prediction."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job to predict: its rows and shards to compute, and its workers.

    `concurrency` is the number of requests that a worker has under way, `host_concurrency` that of the whole job to the
    same host, `read_rates` are seconds per row of reading whole shards.
    """

    n_rows: int
    n_shards: int
    capacity: Capacity
    concurrency: int
    host_concurrency: int
    read_rates: Sequence[float]
    seed: int = 0


class Clock(NamedTuple):
    """The seconds of each stage, summed over the shards of a job, and of the busiest host.

    Images are downloaded for as long as the slowest row of each shard takes, or all requests with `concurrency` of them
    at a time, or the work of the CPU on them. The requests to one host take their time however many workers there are.
    """

    stages: dict[str, float]
    busiest_host: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predictions for a job. `n_bytes` is by kind of file, `drops` counts rows of the sample by stage and reason."""

    n_sampled: int
    kept: Estimate
    n_bytes: dict[str, Estimate]
    hours: Estimate
    model_hours: Estimate
    requests: Estimate
    drops: dict[tuple[str, str], int]
    stage_seconds: dict[str, float]


def predict(samples: Sequence[Measured], job: Job) -> Prediction:
    """Predict a job from its sample shards, of which there is at least one with a row."""
    rows = columns(pa.concat_tables([sample.rows for sample in samples]))
    n, scale = len(rows["status"]), job.n_rows / len(rows["status"])
    rng = np.random.default_rng(job.seed)
    draws = [rng.integers(0, n, n) for _ in range(N_DRAWS)]
    of_shards = [rng.integers(0, len(samples), len(samples)) for _ in range(N_DRAWS)]
    correction = math.sqrt(max(1 - n / job.n_rows, 0.0))

    def total(values: Floats) -> Estimate:
        sums = [float(values[draw].sum()) for draw in draws]
        return interval(float(values.sum()), sums, correction) * scale

    n_kept = int(np.sum(rows["status"] == KEPT))
    low, high = (n_kept / n + correction * (bound - n_kept / n) for bound in wilson(n_kept, n))
    fixed: Mapping[str, int] = samples[0].fixed
    clocks = [times(samples, rows, job, draw, shards) for draw, shards in zip(draws, of_shards, strict=True)]
    found = times(samples, rows, job, np.arange(n), np.arange(len(samples)))

    def hours(clock: Clock) -> float:
        return max(job.capacity.wall_seconds(clock.stages, job.n_shards), clock.busiest_host) / 3600

    def spent(value: Callable[[Clock], float]) -> Estimate:
        return interval(value(found), [value(clock) for clock in clocks])

    return Prediction(
        n_sampled=n,
        kept=Estimate(n_kept / n, low, high) * job.n_rows,
        n_bytes={
            name.removeprefix("bytes "): shifted(total(rows[name]), fixed, name, job.n_shards)
            for name in rows
            if name.startswith("bytes ")
        },
        hours=spent(hours),
        model_hours=spent(lambda clock: sum(clock.stages.get(name, 0.0) for name in MODEL_STAGES) / 3600),
        requests=total(rows["requests"]),
        drops=count_drops(rows),
        stage_seconds=found.stages,
    )


def times(samples: Sequence[Measured], rows: Columns, job: Job, draw: Any, shards: Any) -> Clock:
    """Return the times of a job for a draw of rows and of sample shards.

    The rate of a stage is its time in the drawn shards by the rows that entered it there; the number of rows that enter
    it is that of the drawn rows.
    """
    n, entering = len(draw), rows_entering(rows, draw)
    seconds = {"read": float(np.mean([job.read_rates[i % len(job.read_rates)] for i in shards])) * job.n_rows}
    for stage in (*STAGES[1:], DOWNLOAD_CPU):
        timings = [samples[i].timings[stage] for i in shards if stage in samples[i].timings]
        n_rows = sum(timing["rows"] for timing in timings)
        rate = sum(timing["seconds"] for timing in timings) / n_rows if n_rows else 0.0
        seconds[stage] = rate * entering.get(stage, n) * job.n_rows / n
    if not rows["requests"].any():
        return Clock(seconds, 0.0)
    busy = rows["busy"][draw] * job.n_rows / n
    busiest = float(np.bincount(rows["host code"][draw], busy).max()) / job.host_concurrency
    slowest = float(rows["seconds"][draw].max()) * job.n_shards
    waiting = max(slowest, float(busy.sum()) / job.concurrency, seconds[DOWNLOAD_CPU])
    return Clock(seconds | {WAITING: max(waiting, busiest) if job.capacity.is_sequential else waiting}, busiest)


def rows_entering(rows: Columns, draw: Any) -> dict[str, int]:
    """Return the number of drawn rows that enter each stage."""
    dropped = np.bincount(rows["stage code"][draw], minlength=len(STAGES) + 1)
    left = len(draw) - np.cumsum(dropped)
    return {stage: int(left[i] + dropped[i]) for i, stage in enumerate(STAGES)}


def interval(value: float, draws: Sequence[float], correction: float = 1.0) -> Estimate:
    """Return an estimate with the quantiles of its draws, moved towards it by `correction`."""
    low, high = (float(bound) for bound in np.quantile(draws, QUANTILES))
    return Estimate(
        value, value + correction * (min(low, value) - value), value + correction * (max(high, value) - value)
    )


def shifted(estimate: Estimate, fixed: Mapping[str, int], name: str, n_shards: int) -> Estimate:
    """Add the bytes that each file has besides its rows."""
    more = fixed.get(name.removeprefix("bytes "), 0) * n_shards
    return Estimate(*(bound + more for bound in estimate))


def count_drops(rows: Columns) -> dict[tuple[str, str], int]:
    """Count the dropped rows by stage and reason: stages in their order, the most frequent reasons first."""
    pairs = [pair for pair in zip(rows["stage"], rows["reason"], strict=True) if pair[0] is not None]
    counts = {pair: pairs.count(pair) for pair in set(pairs)}
    return dict(sorted(counts.items(), key=lambda item: (STAGES.index(item[0][0]), -item[1], item[0][1])))


def columns(rows: pa.Table) -> Columns:
    """Return the columns of a table as arrays [n]: objects for texts (null: None), else float64.

    Hosts and stages also have whole numbers, which can be counted fast: the index of the stage, one more for kept rows.
    """
    found: dict[str, NDArray[Any]] = {
        name: np.array(rows[name].to_pylist(), object if pa.types.is_string(rows[name].type) else np.float64)
        for name in rows.column_names
    }
    found["host code"] = np.unique(found["host"].astype(str), return_inverse=True)[1]
    found["stage code"] = np.array([len(STAGES) if s is None else STAGES.index(s) for s in found["stage"]], np.int64)
    return found
