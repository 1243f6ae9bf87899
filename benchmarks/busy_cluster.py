"""Benchmark: model workers that wait, on a simulated large cluster. `python -m benchmarks.busy_cluster [--shards N]`

The driver of pipeline/on_ray/ decides as on a cluster, but its calls end in virtual time: 936 CPUs, 64 GPUs, shards of
500 kept rows. Preparing a shard takes so long that the CPUs could feed 1.3 times as many GPUs, times a random factor
(log-normal, 0.5); a table of 43 MB takes 144 ms to a model worker, from the time when the call is queued.
`benchmarks.busy` measures real workers. busy: share of the time of the model workers in which they compute, from the
second to the ninth tenth of the job. driver_ms: CPU time of the driver for each shard. The last line is one JSON
object; `ratio` is the lowest `busy` of shared batches over 0.9, the aim.
"""

import argparse
import heapq
import json
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import ray

from pipeline.config import PipelineConfig, RayConfig
from pipeline.ground.config import GroundConfig
from pipeline.on_ray.calls import Call, Ended, GroupCall, Result
from pipeline.on_ray.cluster import Resources
from pipeline.on_ray.driver import Driver
from pipeline.on_ray.groups import Group, Shard
from pipeline.on_ray.models import Model
from pipeline.read.types import ShardPlan
from pipeline.run import Done, Notes

CPUS, GPUS, ROWS, TABLE_BYTES, FETCH_S, WRITE_S, SPARE = 936, 64, 500, 43_000_000, 0.144, 0.5, 1.3
NODES = [
    {"NodeID": f"cpu{i}", "Alive": True, "Resources": {"CPU": 36.0, "object_store_memory": 38e9}} for i in range(26)
] + [{"NodeID": f"gpu{i}", "Alive": True, "Resources": {"GPU": 8.0, "object_store_memory": 100e9}} for i in range(8)]


@dataclass(eq=False)
class Task(Call):
    """A step that ends with an outcome."""

    outcome: Any = None

    def advance(self) -> Any:
        """Return the outcome."""
        return self.outcome


@dataclass(eq=False, kw_only=True)
class Fed(GroupCall):
    """A call of a group that ends with several outcomes."""

    outcomes: deque[Any] = field(default_factory=deque)

    def advance(self) -> Any:
        """Return the next outcome."""
        return self.outcomes.popleft()


class Handle:
    """Replaces an actor."""

    def __getattr__(self, name: str) -> Any:
        return self

    def remote(self, *arguments: Any) -> None:
        """Do nothing."""


class Simulation:
    """Replaces the calls of the driver: they end in virtual time."""

    def __init__(self, rate: float) -> None:
        self.now, self.n_streams, self.rng = 0.0, 0, Random(0)
        self.infer_s = ROWS / rate
        self.prepare_s = CPUS / GPUS / SPARE * self.infer_s - WRITE_S
        self.free_cpus, self.queued = CPUS, deque[tuple[float, Call]]()
        self.ends: list[tuple[float, int, Call]] = []
        self.free_at: dict[Model, float] = {}
        self.busy: list[tuple[float, float]] = []

    def new_stream(self) -> int:
        """Return a new number."""
        self.n_streams += 1
        return self.n_streams

    def end_at(self, when: float, call: Call) -> None:
        """Let a call give an outcome."""
        heapq.heappush(self.ends, (when, self.new_stream(), call))

    def next(self) -> list[int]:
        """Go on to the next outcome."""
        self.now, _, call = heapq.heappop(self.ends)
        if isinstance(call, Fed) and len(call.outcomes) > 1:
            self.end_at(self.now, call)
        if call.model is None:
            self.free_cpus += 1
            self.start_tasks()
        return [call.stream]

    def start_tasks(self) -> None:
        """Start the tasks for which there are CPUs."""
        while self.queued and self.free_cpus:
            seconds, call = self.queued.popleft()
            self.free_cpus -= 1
            self.end_at(self.now + seconds, call)

    def task(self, shard: Shard, resources: Resources, refused: Sequence[str], home: str = "") -> Call:
        """Queue a step on the CPUs."""
        if shard.step == "write":
            seconds, outcome = WRITE_S, Done({"shard": shard.plan.index}, ())  # type: ignore[typeddict-item]
        else:
            factor = math.exp(self.rng.gauss(-0.125, 0.5))
            seconds, outcome = self.prepare_s * factor, Result(None, Notes({}), TABLE_BYTES)  # type: ignore[assignment]
        call = Task(shard, self.new_stream(), 0, resources, node="cpu0", outcome=outcome)
        self.queued.append((seconds, call))
        self.start_tasks()
        return call

    def run_at(self, model: Model, call: Call, seconds: float, fetch_s: float) -> Call:
        """Queue a call at a model worker."""
        start = max(self.free_at.get(model, 0.0), self.now + fetch_s)
        self.free_at[model] = start + seconds
        self.busy.append((start, start + seconds))
        self.end_at(start + seconds, call)
        model.n_calls += 1
        return call

    def infer(self, shard: Shard, model: Model) -> Call:
        """Run a shard alone."""
        outcome = Result(None, Notes({}))
        call = Task(shard, self.new_stream(), 0, {}, model, node=model.node, outcome=outcome)
        return self.run_at(model, call, self.infer_s, FETCH_S)

    def feed(self, group: Group, shard: Shard, model: Model) -> Call:
        """Run a shard of a group; all of them leave the models at the end of the group."""
        return self.run_at(model, self.fed(group, shard, model, [Ended()]), self.infer_s, FETCH_S)

    def finish(self, group: Group, model: Model) -> Call:
        """Run the last batches of a group."""
        results = [Result(None, Notes({}), shard=shard.plan.index) for shard in group.shards]
        call = self.fed(group, group.shards[-1], model, [*results, Ended()])
        return self.run_at(model, call, 0.03 * len(group.shards) * self.infer_s, 0.0)

    def fed(self, group: Group, shard: Shard, model: Model, outcomes: list[Any]) -> Call:
        """Return a call with these outcomes."""
        return Fed(shard, self.new_stream(), 0, {}, model, model.node, group=group, run=group.run,
                   outcomes=deque(outcomes))  # fmt: skip


class VirtualDriver(Driver):
    """The driver on a simulated cluster."""

    def __init__(self, plans: Sequence[ShardPlan], config: PipelineConfig, simulation: Simulation) -> None:
        super().__init__(plans, config, b"")
        self.simulation = simulation
        self.calls = simulation  # type: ignore[assignment]
        self.models.ready = [Model(Handle(), node=f"gpu{i // 8}") for i in range(GPUS)]

    def _wait(self) -> list[Any]:
        return self.simulation.next()


def measure(rate: float, n_shards: int, batch_shards: int | None) -> dict[str, float]:
    """Run shards at a rate; return the share of the time that the model workers compute."""
    settings, ground = RayConfig(model_workers=GPUS), GroundConfig(batch_shards=batch_shards)
    config = PipelineConfig(input="in", output="out", ray=settings, ground=ground)
    plans, simulation = [ShardPlan(i, i * ROWS, ROWS, ()) for i in range(n_shards)], Simulation(rate)
    start = time.process_time()
    driver, most_bytes, n_done = VirtualDriver(plans, config, simulation), 0, 0
    for _ in driver.run():
        n_done += 1
        most_bytes = max(most_bytes, driver.work.tables.held)
    seconds = time.process_time() - start
    assert n_done == n_shards
    begin, end = (simulation.now * tenth for tenth in (0.2, 0.9))
    busy = sum(max(0.0, min(b, end) - max(a, begin)) for a, b in simulation.busy) / (GPUS * (end - begin))
    return {
        "busy": round(busy, 3),
        "driver_ms": round(1000 * seconds / n_shards, 2),
        "most_gigabytes": round(most_bytes / 1e9, 1),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200], help="images/s of one GPU")
    parser.add_argument("--shards", type=int, default=8192, help="number of shards (default: %(default)s)")
    options = parser.parse_args()
    ray.nodes = lambda: NODES  # the driver looks at the nodes of a cluster that does not exist
    results: dict[str, dict[str, dict[str, float]]] = {}
    for rate in options.rates:
        shared, alone = measure(rate, options.shards, None), measure(rate, options.shards, 1)
        results[f"{rate:g}"] = row = {"shared": shared, "alone": alone}
        for name, found in row.items():
            print(f"{rate:g} images/s per GPU, {name:<7}" + "  ".join(f"{k} {v}" for k, v in found.items()), flush=True)
    least = min(row["shared"]["busy"] for row in results.values())
    print(json.dumps({"name": "busy_cluster", "ratio": round(least / 0.9, 3), "rates": results, "gpus": GPUS}))


if __name__ == "__main__":
    main()
