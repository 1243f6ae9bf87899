"""Benchmark: the driver of pipeline/run/ compared with Ray Data. `python -m benchmarks.ray_data [shards]`

Both run the same three steps for each shard, which sleep instead of working: prepare (0.1 s, returns 20 MB), model
(0.3 s) and write (0.1 s). Ray Data gets one row per shard and a pool of actors for each step; the driver gets the same
number of model workers. The benchmark reports the wall-clock time from the first shard at a model worker, the idle share
of the model workers, and the maximum number of prepared shards waiting for a model worker, which determines memory use. The
last line is one JSON object. `ratio` is the wall-clock time of Ray Data over that of the driver. docs/performance.md
discusses the result.
"""

import argparse
import json
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray

from hypergrit_common.local_ray import init_ray
from hypergrit_common.paths import repository_root
from pipeline.config import PipelineConfig, RayConfig
from pipeline.read.types import ShardPlan
from pipeline.run.ray_driver import Driver
from pipeline.run.steps import Done, Notes, Recipe

PREPARE_S, MODEL_S, WRITE_S, SHARD_BYTES = 0.1, 0.3, 0.1, 20_000_000
WORKERS = 2
Times = dict[str, float]


def prepare() -> np.ndarray:
    """Sleep, and return an array of the size of a table."""
    time.sleep(PREPARE_S)
    return np.zeros(SHARD_BYTES, np.uint8)


@dataclass(frozen=True)
class Marks(Notes):
    """The notes on a shard, with the times of its steps."""

    times: Times = field(default_factory=dict)


class SleepingSteps:
    """Replaces pipeline.run.steps.Steps and records the times of the steps."""

    def load(self, step: str) -> None:
        """Load nothing."""

    def prepare(self, plan: ShardPlan) -> tuple[np.ndarray, Marks]:
        """Run the first step."""
        return prepare(), Marks({}, times={"prepared": time.time()})

    def infer(self, plan: ShardPlan, table: np.ndarray, marks: Marks) -> tuple[np.ndarray, Marks]:
        """Run the second step."""
        started = time.time()
        time.sleep(MODEL_S)
        return table, Marks({}, times={**marks.times, "started": started, "ended": time.time()})

    def write(self, plan: ShardPlan, table: np.ndarray, marks: Marks) -> Done:
        """Run the third step."""
        time.sleep(WRITE_S)
        return Done({**marks.times, "written": time.time()}, ())  # type: ignore[typeddict-item]


def with_driver(n: int) -> list[Times]:
    """Run the pipeline's driver with the steps above. Returns the times of each shard."""
    config = PipelineConfig(input="in", output="out", ray=RayConfig(model_workers=WORKERS))
    plans = [ShardPlan(i, i, 1, ()) for i in range(n)]
    results: Any = Driver(plans, config.ray, Recipe(SleepingSteps, config)).run()
    return [result.manifest for result in results]


class Prepare:
    """The prepare step for Ray Data."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        table = prepare()
        return {"table": table[None], "prepared": np.array([time.time()])}


class Infer:
    """The model step for Ray Data."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        started = time.time()
        time.sleep(MODEL_S)
        return {**batch, "started": np.array([started]), "ended": np.array([time.time()])}


class Write:
    """The write step for Ray Data."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(WRITE_S)
        return {**{key: batch[key] for key in ("prepared", "started", "ended")}, "written": np.array([time.time()])}


def with_ray_data(n: int) -> list[Times]:
    """Run three operators with a pool of actors each, one row per shard. Returns the times of each shard."""
    import ray.data

    data: ray.data.Dataset = ray.data.from_items([{"shard": i} for i in range(n)], override_num_blocks=n)
    pool = ray.data.ActorPoolStrategy(size=WORKERS)
    for step, cpus in ((Prepare, 0.25), (Infer, 0.5), (Write, 0.25)):
        data = data.map_batches(step, batch_size=1, compute=pool, num_cpus=cpus)
    return data.take_all()


def metrics(times: list[Times]) -> Times:
    """Return the wall-clock time, the idle share of the model workers, and the maximum number of waiting shards."""
    start, end = min(t["started"] for t in times), max(t["ended"] for t in times)
    busy = sum(t["ended"] - t["started"] for t in times)
    events = sorted([(t["prepared"], 1) for t in times] + [(t["started"], -1) for t in times])
    waiting = np.cumsum([change for _, change in events])
    wall = max(t["written"] for t in times) - start
    idle = 1 - busy / (WORKERS * (end - start))
    return {"wall_s": round(wall, 2), "model_idle": round(idle, 3), "most_waiting": int(waiting.max())}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=int, nargs="?", default=40, help="number of shards (default: %(default)s)")
    n = parser.parse_args().shards
    # Four CPUs, because Ray Data hangs if its actors occupy all CPUs. "local" starts a new Ray instance.
    paths = {"PYTHONPATH": str(repository_root())}
    init_ray("local", num_cpus=4, log_to_driver=False, runtime_env={"env_vars": paths})
    driver, data = metrics(with_driver(n)), metrics(with_ray_data(n))
    ray.shutdown()
    for name, row in (("driver", driver), ("Ray Data", data)):
        print(f"{name:<10}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    ratio = round(data["wall_s"] / driver["wall_s"], 2)
    print(json.dumps({"name": "ray_data", "ratio": ratio, "driver": driver, "ray_data": data, "shards": n}))


if __name__ == "__main__":
    from benchmarks import ray_data  # the classes of the module, not of __main__, can be unpickled by workers

    ray_data.main()
