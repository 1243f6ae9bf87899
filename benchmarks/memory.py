"""Benchmark: peak memory of the workers and of the driver against the number of rows. `python -m benchmarks.memory`

    python -m benchmarks.memory [--quick] [--rows ROWS]

Each measurement is a process of its own, which reads its peak (VmHWM) after a tenth of its rows and at their end:

- `cpu`: prepare and write, shard after shard, from tars of scenes whose captions hold new words in every row, as on the
  web. The write step gets tables of the model step.
- `model`: ground and score with the miniature models, on a few prepared tables in turn. GLIP sees images with a short
  side of 128 px instead of 224, with which 100,000 rows would take 95 minutes on one core.
- `driver`: the complete job on Ray over simulated shards of one row each. It counts `ROWS_PER_SHARD` rows a shard, since
  the driver sees shards and not rows; measured in two runs, because the report at the end is part of the job.

The rows are 100,000 a worker and 1,000,000 for the driver, in less than an hour on two cores; with `--quick` they are
5,000 and 100,000, in a few minutes. The last line is one JSON object. `ratio` is the largest growth of the peak from a
tenth of the rows (a hundredth for the driver) to all.
"""

import argparse
import json
import multiprocessing as mp
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline.config import PipelineConfig, load_config
from pipeline.ground.load import MINIATURE
from pipeline.images import encode_jpeg
from pipeline.read.plan import plan_shards
from pipeline.read.types import Piece, ShardPlan
from pipeline.write.tar import TarWriter

ROWS_PER_SHARD = 1000
SCENES = 200
TABLES = 2
WORKER_ROWS, DRIVER_ROWS = 100_000, 1_000_000
QUICK_WORKER_ROWS, QUICK_DRIVER_ROWS = 5000, 100_000
SIDES = {"short_side_px": 128, "max_side_px": 256}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
Queue = Any
"""A queue of multiprocessing."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows, a few minutes")
    parser.add_argument("--rows", type=int, help="rows of a worker")
    options = parser.parse_args()
    worker_rows = options.rows or (QUICK_WORKER_ROWS if options.quick else WORKER_ROWS)
    driver_rows = QUICK_DRIVER_ROWS if options.quick else DRIVER_ROWS
    per_shard = min(ROWS_PER_SHARD, worker_rows // 10)
    peaks: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        scenes = [
            make_scene(TEST_SEEDS.start + i, "openmoji", WorldConfig(width=384, height=288)) for i in range(SCENES)
        ]
        pictures = [(encode_jpeg(scene.image), scene.caption) for scene in scenes]
        n_shards = worker_rows // per_shard
        workers = {"cpu": cpu_worker, "model": model_worker}
        running = {name: started(work, folder / name, pictures, per_shard, n_shards) for name, work in workers.items()}
        peaks = {name: finish() for name, finish in running.items()}
        few, many = (driver_rows // ROWS_PER_SHARD // 100 or 1), driver_rows // ROWS_PER_SHARD
        peaks["driver"] = [started(driver, folder / f"d{n}", pictures, 1, n)()[0] for n in (few, many)]
    print(f"{'process':<10}{'rows':>20}{'peak MB':>20}")
    counts = dict.fromkeys(workers, (worker_rows // 10, worker_rows))
    counts["driver"] = (few * ROWS_PER_SHARD, many * ROWS_PER_SHARD)
    for name, (before, after) in peaks.items():
        print(f"{name:<10}{f'{counts[name][0]} {counts[name][1]}':>20}{f'{before >> 20} {after >> 20}':>20}")
    ratios = {name: round(after / before, 3) for name, (before, after) in peaks.items()}
    record = {"name": "memory", "rows": counts, "peak_mb": {name: values[1] >> 20 for name, values in peaks.items()}}
    print(json.dumps({**record, "ratios": ratios, "ratio": max(ratios.values())}))


def started(work: Callable[..., None], *arguments: Any) -> Callable[[], list[int]]:
    """Start `work` in a fresh process; return a function that waits for the peaks that it puts into its queue."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue, *arguments), name=work.__name__)
    process.start()

    def finish() -> list[int]:
        process.join()
        if process.exitcode:
            sys.exit(f"{work.__name__} ended with exit code {process.exitcode}")
        peaks: list[int] = queue.get()
        return peaks

    return finish


def peak_bytes() -> int:
    """The peak memory of this process; unlike ru_maxrss, it does not include that of its parent before exec."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def measured(steps: Iterator[Any], n: int) -> list[int]:
    """Consume `n` steps; return the peak after a tenth of them and at the end. Each tenth is printed."""
    peaks = []
    for i, _ in enumerate(steps, 1):
        if i % (n // 10) == 0:
            peaks.append(peak_bytes())
            name = mp.current_process().name
            print(f"{name}: {i} of {n} shards, peak {peaks[-1] >> 20} MB", file=sys.stderr, flush=True)
    return [peaks[0], peaks[-1]]


def write_input(path: Path, pictures: list[tuple[bytes, str]], first: int, n_rows: int) -> Piece:
    """Write a tar of scenes; each caption has two words that occur nowhere else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file, TarWriter(file) as tar:
        for i in range(first, first + n_rows):
            jpeg, caption = pictures[i % len(pictures)]
            random = Random(i)
            words = ["".join(random.choices(LETTERS, k=9)) for _ in range(2)]
            tar.add_sample(f"{i:09d}", [("jpg", jpeg), ("txt", f"{caption} by {words[0]} {words[1]}".encode())])
    return Piece(str(path), 0, n_rows, path.stat().st_size)


def configuration(folder: Path, *others: str) -> PipelineConfig:
    return load_config([f"input={folder / 'in'}", f"output={folder / 'out'}", *others])


def cpu_worker(queue: Queue, folder: Path, pictures: list[tuple[bytes, str]], per_shard: int, n_shards: int) -> None:
    """Prepare and write shards; each takes the place of the shard before it, so that the disk does not fill up."""
    from pipeline.provenance import make_provenance
    from pipeline.run import Steps

    config = configuration(folder)
    steps = Steps(config, make_provenance(config))

    def plan(i: int) -> ShardPlan:
        piece = write_input(folder / "in" / "0.tar", pictures, i * per_shard, per_shard)
        return ShardPlan(0, 0, per_shard, (piece,))

    first = plan(0)
    inferred = steps.infer(first, *steps.prepare(first))

    def shards() -> Iterator[None]:
        for i in range(n_shards):
            current = plan(i)
            steps.prepare(current)
            steps.write(current, *inferred)
            yield

    queue.put(measured(shards(), n_shards))


def model_worker(queue: Queue, folder: Path, pictures: list[tuple[bytes, str]], per_shard: int, n_shards: int) -> None:
    """Ground and score prepared tables."""
    from pipeline.provenance import make_provenance
    from pipeline.run import Steps

    config = configuration(folder, f"grounder={quick_grounder(folder / 'glip')}")
    steps = Steps(config, make_provenance(config))
    plans = [
        ShardPlan(i, 0, per_shard, (write_input(folder / "in" / f"{i}.tar", pictures, i * per_shard, per_shard),))
        for i in range(TABLES)
    ]
    tables = cycle([(plan, *steps.prepare(plan)) for plan in plans])
    queue.put(measured((steps.infer(*next(tables)) for _ in range(n_shards)), n_shards))


def quick_grounder(folder: Path) -> Path:
    """Write the miniature GLIP with small images to `folder`; return it."""
    shutil.copytree(MINIATURE, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["detect"].update(SIDES)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def driver(queue: Queue, folder: Path, pictures: list[tuple[bytes, str]], per_shard: int, n_shards: int) -> None:
    """Run the complete job, by default on Ray on this machine."""
    from pipeline.job import run

    write_input(folder / "in" / "0.tar", pictures, 0, per_shard * n_shards)
    config = configuration(folder, f"rows_per_shard={per_shard}", "formats=[arrow]", "report.summary=false")
    assert len(plan_shards(config.input, per_shard, None, config.read)) == n_shards
    run(config)
    queue.put([peak_bytes()])


if __name__ == "__main__":
    main()
