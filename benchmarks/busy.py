"""Benchmark: the share of the time in which model workers compute. `python -m benchmarks.busy [--rates 50 100 200]`

A local Ray has virtual GPUs. All work sleeps: a batch of the grounder takes as long as a full one at the given rate, in
images/s of one GPU, and preparing a shard takes so long that the CPU workers could feed 1.3 times as many GPUs. The
shards are real tables with images of 50 kB and sizes as on the web; the driver, the model workers and their batches are
those of the pipeline. Each rate is measured with batches that 16 shards share, and the last one also with those of
single shards (`ground.batch_shards=1`), as up to version 0.7.

busy: share of the time in which the workers run a batch, from the first fifth of the batches of each until one has no
more work. waiting: the share of pauses that are longer than a batch, which is the wait for input; the rest goes to
decoding, tokenizing and scoring on this machine. useful: `busy` if all batches were full; this is the rate over that of a
GPU which never waits. fill: mean batch over `ground.batch_size`. The last line is one JSON object; `ratio` is the lowest
`busy` of shared batches over 0.9, the aim.
"""

import argparse
import json
import pickle
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import ray

from benchmarks.sleeping import CPUS, GPUS, ROWS, SleepingSteps
from pipeline.config import PipelineConfig, RayConfig, repository_root
from pipeline.ground.config import GroundConfig
from pipeline.on_ray.driver import Driver
from pipeline.read.types import ShardPlan
from pipeline.run import Done
from pipeline.score.config import ScoreConfig


def measure(rate: float, n_shards: int, batch_shards: int | None) -> dict[str, float]:
    """Run shards at a rate; return the shares of the time that the model workers compute."""
    settings = RayConfig(model_workers=GPUS, gpus_per_model_worker=1)
    ground = GroundConfig(batch_shards=batch_shards)
    score = ScoreConfig(min_side_px=8)
    config = PipelineConfig(input="in", output="out", ray=settings, ground=ground, score=score)
    plans = [ShardPlan(i, i * ROWS, ROWS, ()) for i in range(n_shards)]
    with tempfile.TemporaryDirectory() as folder:
        recipe = pickle.dumps(partial(SleepingSteps, config, rate, f"{folder}/log"))
        start = time.time()
        driver = Driver(plans, config, recipe)
        n_done = sum(isinstance(result, Done) for result in driver.run())
        seconds = time.time() - start
        for model in driver.models.ready:
            model.kill()
        logs = [read(path) for path in sorted(Path(folder).glob("log.*"))]
    assert n_done == n_shards
    assert len(logs) == GPUS
    begin, end = max(log[len(log) // 5, 0] for log in logs), min(log[-1, 1] for log in logs)
    inside = [log[(log[:, 0] >= begin) & (log[:, 1] <= end)] for log in logs]
    busy = sum((log[:, 1] - log[:, 0]).sum() for log in inside) / (GPUS * (end - begin))
    gaps = np.concatenate([log[1:, 0] - log[:-1, 1] for log in inside])
    waits = gaps[gaps > ground.batch_size / rate].sum() / (GPUS * (end - begin))
    batches = np.concatenate([log[:, 2] for log in logs])
    images = sum(log[:, 2].sum() for log in inside)
    return {
        "busy": round(float(busy), 3),
        "waiting": round(float(waits), 3),
        "useful": round(float(images / rate / (GPUS * (end - begin))), 3),
        "fill": round(float(batches.mean() / ground.batch_size), 3),
        "seconds": round(seconds, 1),
    }


def read(path: Path) -> np.ndarray:
    """Return the batches of a worker as rows (start, end, images)."""
    return np.array([[float(part) for part in line.split()] for line in path.read_text().splitlines()])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200], help="images/s of one GPU")
    parser.add_argument("--shards", type=int, default=64, help="number of shards (default: %(default)s)")
    options = parser.parse_args()
    # "local" starts a new Ray instance. Its CPUs sleep, so there may be more than the machine has.
    paths = {"PYTHONPATH": str(repository_root()), "OMP_NUM_THREADS": "1"}
    ray.init("local", num_cpus=CPUS, num_gpus=GPUS, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": paths})  # fmt: skip
    shared: dict[str, dict[str, float]] = {}
    for rate in options.rates:
        shared[f"{rate:g}"] = measure(rate, options.shards, None)
        show(rate, "shared", shared[f"{rate:g}"])
    alone = measure(rate, options.shards, 1)
    show(rate, "alone", alone)
    ray.shutdown()
    record = {"name": "busy", "ratio": round(min(found["busy"] for found in shared.values()) / 0.9, 3)}
    print(json.dumps({**record, "shared": shared, f"alone_{rate:g}": alone, "gpus": GPUS, "cpus": CPUS}))


def show(rate: float, name: str, found: dict[str, float]) -> None:
    """Print the figures of a run."""
    print(f"{rate:g} images/s per GPU, {name:<7}" + "  ".join(f"{k} {v}" for k, v in found.items()), flush=True)


if __name__ == "__main__":
    main()
