"""How close the whole job comes to its busiest stage: `python -m benchmarks.job [shards]`.

The same prepared shards go through the grounder alone, in as many processes as the job has model workers, and then the job runs them whole
under Ray. Both rates are taken once everything is loaded: between the first and the last finished shard. The last line is one JSON object;
`ratio` is the job's time a row over the busiest stage's (1.0: the other stages cost nothing).
"""

import json
import multiprocessing as mp
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2

from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline.config import PipelineConfig, load_config
from pipeline.on_ray import run_on_ray
from pipeline.provenance import make_provenance
from pipeline.read import ShardPlan, plan_shards
from pipeline.write.tar import TarWriter

ROWS_PER_SHARD = 24
WORKERS = 2


def make_input(folder: Path, n_rows: int) -> None:
    """Scenes as one WebDataset tar, so that no network is timed."""
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i in range(n_rows):
            scene = make_scene(TEST_SEEDS.start + i, "openmoji", WorldConfig(width=384, height=288))
            _, jpeg = cv2.imencode(".jpg", scene.image[:, :, ::-1])
            tar.add_sample(f"{i:06d}", [("jpg", jpeg.tobytes()), ("txt", scene.caption.encode())])


def ground_alone(plans: list[ShardPlan], config: PipelineConfig, done: "mp.Queue[float]") -> None:
    """Prepare everything, wait for the first shard to pass, then ground the rest; puts the time of each shard's end."""
    from pipeline.run import Infer, Prepare

    prepare, ground = Prepare(config), Infer(config).stages[0][1]
    tables = [prepare(plan)[0] for plan in plans]
    for table in tables:
        ground(table)
        done.put(time.monotonic())


def rate(times: list[float]) -> float:
    """Rows per second between the first and the last finished shard."""
    times = sorted(times)
    return (len(times) - 1) * ROWS_PER_SHARD / (times[-1] - times[0])


def main() -> None:
    n_shards = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "in").mkdir()
        make_input(folder / "in", n_shards * ROWS_PER_SHARD)
        values = [f"input={folder / 'in'}", f"output={folder / 'out'}", f"rows_per_shard={ROWS_PER_SHARD}"]
        config = load_config(None, [*values, f"ray.model_workers={WORKERS}"])
        plans = plan_shards(config.input, config.rows_per_shard, None, config.read)
        busiest = sum(_alone(plans, config))
        ends = [time.monotonic() for _ in run_on_ray(plans, config, make_provenance(config))]
        job = rate(ends)
        timings = [json.loads(path.read_text()) for path in sorted((folder / "out" / "_timings").glob("0*.json"))]
    seconds = {stage: round(sum(timing[stage]["seconds"] for timing in timings), 2) for stage in timings[0]}
    print(f"{'stage':<10}{'seconds in all workers':>24}")
    for stage, total in seconds.items():
        print(f"{stage:<10}{total:>24.2f}")
    print(f"grounding alone {busiest:.1f} rows/s, the whole job {job:.1f} rows/s, {WORKERS} model workers")
    record: dict[str, Any] = {"name": "job", "ratio": round(busiest / job, 3), "rows_per_s": round(job, 2)}
    print(json.dumps({**record, "busiest_rows_per_s": round(busiest, 2), "stage_seconds": seconds}))


def _alone(plans: list[ShardPlan], config: PipelineConfig) -> list[float]:
    """The rate of each of `WORKERS` processes that ground their share of the shards at the same time."""
    context = mp.get_context("spawn")
    queues = [context.Queue() for _ in range(WORKERS)]
    workers = [
        context.Process(target=ground_alone, args=(plans[i::WORKERS], config, queue)) for i, queue in enumerate(queues)
    ]
    for worker in workers:
        worker.start()
    rates = [rate([queue.get() for _ in plans[i::WORKERS]]) for i, queue in enumerate(queues)]
    for worker in workers:
        worker.join()
    return rates


if __name__ == "__main__":
    main()
