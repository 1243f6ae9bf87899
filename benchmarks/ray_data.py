"""Ray Data or Ray tasks: `python -m benchmarks.ray_data [shards]`, the measurement behind docs/architecture.md.

The same three steps, with sleeping in place of work (prepare 0.1 s and 20 MB, model 0.3 s, write 0.1 s a shard), go through Ray Data with a
shard a row, and through the driver of pipeline/on_ray.py with actors. For each: wall seconds from the first prepared shard, share of that
time the model workers stood idle, and how many prepared shards waited at most (back-pressure: each holds its images in memory).
The last line is one JSON object; `ratio` is Ray Data's wall time over that of the actors.
"""

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from pipeline import on_ray
from pipeline.on_ray import WorkerPlan

PREPARE_S, MODEL_S, WRITE_S, SHARD_BYTES = 0.1, 0.3, 0.1, 20_000_000
WORKERS = 2


@dataclass(frozen=True)
class Shard:
    """All that the driver asks of a plan."""

    index: int


def prepare() -> np.ndarray:
    """A table's worth of bytes."""
    time.sleep(PREPARE_S)
    return np.zeros(SHARD_BYTES, np.uint8)


class CpuWorker:
    """Stands where on_ray.CpuWorker does; notes when each call began and ended."""

    def __init__(self, *_: Any) -> None: ...

    @ray.method(num_returns=2)
    def prepare(self, plan: Shard) -> tuple[np.ndarray, dict[str, float]]:
        return prepare(), {"prepared": time.time()}

    def write(self, plan: Shard, table: np.ndarray, times: dict[str, float]) -> dict[str, float]:
        time.sleep(WRITE_S)
        return {**times, "written": time.time()}


class ModelWorker:
    """Stands where on_ray.ModelWorker does."""

    def __init__(self, *_: Any) -> None: ...

    @ray.method(num_returns=2)
    def infer(self, plan: Shard, table: np.ndarray, times: dict[str, float]) -> tuple[np.ndarray, dict[str, float]]:
        begun = time.time()
        time.sleep(MODEL_S)
        return table, {**times, "begun": begun, "ended": time.time()}


def with_actors(n: int) -> list[dict[str, float]]:
    """The driver of the pipeline itself, with the workers above."""
    on_ray.CpuWorker, on_ray.ModelWorker = CpuWorker, ModelWorker  # type: ignore[misc, assignment]
    config: Any = type("Config", (), {"ray": None})
    crew = WorkerPlan(WORKERS, WORKERS, 0.5, 0.5, 0.0)
    return list(on_ray.Driver([Shard(i) for i in range(n)], config, {}, crew).run())  # type: ignore[misc]


class Prepare:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        table = prepare()
        return {"table": table[None], "prepared": np.array([time.time()])}


class Infer:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        begun = time.time()
        time.sleep(MODEL_S)
        return {**batch, "begun": np.array([begun]), "ended": np.array([time.time()])}


class Write:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(WRITE_S)
        return {**{key: batch[key] for key in ("prepared", "begun", "ended")}, "written": np.array([time.time()])}


def with_ray_data(n: int) -> list[dict[str, float]]:
    """A row a shard, three operators with a pool of actors each."""
    import ray.data

    data = ray.data.from_items([{"shard": i} for i in range(n)], override_num_blocks=n)
    pool = ray.data.ActorPoolStrategy(size=WORKERS)
    for step, cpus in ((Prepare, 0.25), (Infer, 0.5), (Write, 0.25)):
        data = data.map_batches(step, batch_size=1, compute=pool, num_cpus=cpus)
    return data.take_all()


def figures(times: list[dict[str, float]]) -> dict[str, float]:
    """Wall seconds, idle share of the model workers, most prepared shards that waited at once."""
    start, end = min(t["begun"] for t in times), max(t["ended"] for t in times)
    busy = sum(t["ended"] - t["begun"] for t in times)
    events = sorted([(t["prepared"], 1) for t in times] + [(t["begun"], -1) for t in times])
    waiting = np.cumsum([change for _, change in events])
    wall = max(t["written"] for t in times) - min(t["prepared"] for t in times)
    idle = 1 - busy / (WORKERS * (end - start))
    return {"wall_s": round(wall, 2), "model_idle": round(idle, 3), "most_waiting": int(waiting.max())}


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    # Four CPUs: Ray Data hangs when its actors fill every one. A Ray of its own, also where another runs on the machine.
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    actors, data = figures(with_actors(n)), figures(with_ray_data(n))
    ray.shutdown()
    for name, row in (("actors", actors), ("Ray Data", data)):
        print(f"{name:<10}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    ratio = round(data["wall_s"] / actors["wall_s"], 2)
    print(json.dumps({"name": "ray_data", "ratio": ratio, "actors": actors, "ray_data": data, "shards": n}))


if __name__ == "__main__":
    main()
