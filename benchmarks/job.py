"""Benchmark: the full job on Ray compared with its most expensive stage alone, and with its steps without Ray.

    python -m benchmarks.job [shards]

First, the grounding stage processes prepared shards in as many processes as the job has model workers. Then one process
runs all steps of the same shards, and the full job does so on Ray. All are measured in the steady state, after every
worker has finished its first shards. The last line is one JSON object. `ratio` is the wall-clock time per row of the
job over that of the grounding stage; at 1.0, the other stages and Ray add no time. `cpu_ratio` compares the CPU time of
all processes, including those of Ray; other load affects it less. `wiring` is the share of the job's CPU time that its
steps alone do not need: processes of Ray, the driver, and the transport of tables.
"""

import argparse
import dataclasses
import json
import multiprocessing as mp
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import torch

from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from hypergrit_common.processes import descendants, stat_fields
from pipeline.config import PipelineConfig, load_config
from pipeline.output.write.tar import TarWriter
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.run.provenance import make_provenance
from pipeline.run.ray import compute_on_ray
from pipeline.run.steps import Recipe, Steps

ROWS_PER_SHARD = 48
WORKERS = 2
WARM_SHARDS = 2 * WORKERS
"""Number of shards that finish before the measurement starts, since workers first load their models."""


class ShardEnd(NamedTuple):
    """The time at which a shard was finished, and the CPU seconds used until then."""

    wall_s: float
    cpu_s: float


def make_input(folder: Path, n_rows: int) -> None:
    """Write scenes to a WebDataset tar, so that no downloads are measured."""
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i in range(n_rows):
            scene = make_scene(TEST_SEEDS.start + i, "openmoji", WorldConfig(width=384, height=288))
            _, jpeg = cv2.imencode(".jpg", scene.image[:, :, ::-1])
            tar.add_sample(f"{i:06d}", [("jpg", jpeg.tobytes()), ("txt", scene.caption.encode())])


def ground_alone(plans: list[ShardPlan], config: PipelineConfig, ready: Any, ends: "mp.Queue[ShardEnd]") -> None:
    """Prepare all shards, wait for the other processes, and ground the shards. Puts the end of each into `ends`."""
    torch.set_num_threads(1)  # as in the job, which has one worker per core
    steps = Steps(config, make_provenance(config))
    ground = steps.stage("ground")
    tables = [steps.prepare(plan)[0] for plan in plans]
    ready.wait()
    for table in tables:
        ground(table)
        ends.put(ShardEnd(time.monotonic(), time.process_time()))


def run_alone(plans: list[ShardPlan], config: PipelineConfig, ready: Any, ends: "mp.Queue[ShardEnd]") -> None:
    """Run all steps of all shards in this process. Puts the end of each shard into `ends`."""
    torch.set_num_threads(1)
    steps = Steps(config, make_provenance(config))
    ready.wait()
    for plan in plans:
        steps.write(plan, *steps.infer(plan, *steps.prepare(plan)))
        ends.put(ShardEnd(time.monotonic(), cpu_seconds()))


def per_row(ends: list[ShardEnd], n_warm: int) -> tuple[float, float]:
    """Return wall-clock and CPU seconds per row, without the first `n_warm` shards."""
    ends = sorted(ends)
    first, last, n_rows = ends[n_warm - 1], ends[-1], (len(ends) - n_warm) * ROWS_PER_SHARD
    return (last.wall_s - first.wall_s) / n_rows, (last.cpu_s - first.cpu_s) / n_rows


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants."""
    ticks = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        fields = stat_fields(pid)
        ticks += int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="?", type=int, default=24, help="number of shards")
    n_shards = parser.parse_args().shards
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "in").mkdir()
        make_input(folder / "in", n_shards * ROWS_PER_SHARD)
        values = [f"input={folder / 'in'}", f"output={folder / 'out'}", f"rows_per_shard={ROWS_PER_SHARD}"]
        config = load_config([*values, f"ray.model_workers={WORKERS}"])
        plans = plan_shards(config.input, config.rows_per_shard, None, config.read)
        alone = run_workers(ground_alone, plans, config, WORKERS)
        # The rates of concurrent processes are summed; CPU seconds per row are averaged.
        alone_s, alone_cpu_s = 1 / sum(1 / wall for wall, _ in alone), sum(cpu for _, cpu in alone) / WORKERS
        ((_, steps_cpu_s),) = run_workers(
            run_alone, plans, dataclasses.replace(config, output=str(folder / "steps")), 1
        )
        results = compute_on_ray(plans, config.ray, Recipe(partial(Steps, config, make_provenance(config)), config))
        ends = [ShardEnd(time.monotonic(), cpu_seconds()) for _ in results]
        job_s, job_cpu_s = per_row(ends, WARM_SHARDS)
        timings = [json.loads(path.read_text()) for path in sorted((folder / "out" / "_timings").glob("0*.json"))]
    seconds = {stage: round(sum(timing[stage]["seconds"] for timing in timings), 2) for stage in timings[0]}
    print(f"{'stage':<10}{'seconds in all workers':>24}")
    for stage, total in seconds.items():
        print(f"{stage:<10}{total:>24.2f}")
    print(f"{'':<22}{'rows/s':>8}{'CPU ms per row':>16}   {WORKERS} model workers")
    print(f"{'grounding alone':<22}{1 / alone_s:>8.1f}{alone_cpu_s * 1000:>16.1f}")
    print(f"{'all steps, no Ray':<22}{'':>8}{steps_cpu_s * 1000:>16.1f}")
    print(f"{'full job':<22}{1 / job_s:>8.1f}{job_cpu_s * 1000:>16.1f}")
    record: dict[str, Any] = {"name": "job", "ratio": round(job_s / alone_s, 3), "rows_per_s": round(1 / job_s, 2)}
    record |= {"busiest_rows_per_s": round(1 / alone_s, 2), "cpu_ratio": round(job_cpu_s / alone_cpu_s, 3)}
    record["wiring"] = round(1 - steps_cpu_s / job_cpu_s, 3)
    print(json.dumps({**record, "stage_seconds": seconds}))


def run_workers(target: Any, plans: list[ShardPlan], config: PipelineConfig, n: int) -> list[tuple[float, float]]:
    """Return wall-clock and CPU seconds per row of n processes, each of which runs `target` on a part of the shards."""
    context = mp.get_context("spawn")
    queues, ready = [context.Queue() for _ in range(n)], context.Barrier(n)
    workers = [
        context.Process(target=target, args=(plans[i::n], config, ready, queue)) for i, queue in enumerate(queues)
    ]
    for worker in workers:
        worker.start()
    ends = [[queue.get() for _ in plans[i::n]] for i, queue in enumerate(queues)]
    for worker in workers:
        worker.join()
    return [per_row(times, WARM_SHARDS // WORKERS) for times in ends]


if __name__ == "__main__":
    main()
