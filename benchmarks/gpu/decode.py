"""Image-text pairs per second that the trainer's loader decodes, by number of processes. Needs no GPU.

    python -m benchmarks.gpu.decode [--workers 1 4 8 16] [--batch 768] [--shards FOLDER]

A pair is an image and one box, cropped to 224 px, with caption and phrase. The last row, `part=needed`, compares the
rate with the pairs/s at which the model computes, from OUT/trainer_step.json if it exists: data suffice if the ratio is
well above 1.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.session import Session, parser_of, run
from benchmarks.gpu.trainer_step import config_of, drawn_shards, loader_of
from hypergrit_common.processes import n_cpus
from trainer.config import TrainConfig

SECONDS, TINY_SECONDS = 20.0, 0.5
BATCH, TINY_BATCH = 768, 8


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of loader processes; default: up to all cores")
    parser.add_argument("--batch", type=int, help=f"pairs in a batch; default: {BATCH}")
    parser.add_argument("--shards", help="folder of training shards")
    run("decode", parser.parse_args(), measure)


def measure(session: Session) -> None:
    """Measure each number of processes."""
    options, cores = session.options, n_cpus()
    numbers = options.workers or sorted({1, 2} if options.tiny else {1, cores // 4 or 1, cores // 2 or 1, cores})
    batch = options.batch or (TINY_BATCH if options.tiny else BATCH)
    with tempfile.TemporaryDirectory() as folder:
        shards = options.shards or drawn_shards(Path(folder, "shards"), tiny=options.tiny)
        options.workers = 1
        config = config_of(session, "hycoclip", batch, shards, Path(folder, "run"))
        for workers in numbers:
            with session.measure(workers=workers, batch=batch) as row:
                row["pairs_per_s"] = pairs_per_s(config, workers, TINY_SECONDS if options.tiny else SECONDS)
                row["pairs_per_s_per_worker"] = row["pairs_per_s"] / workers
    with session.measure(part="needed") as row:
        row |= compare(options.out / "trainer_step.json", max(row.get("pairs_per_s", 0) for row in session.rows))


def pairs_per_s(config: TrainConfig, workers: int, seconds: float) -> float:
    """Return the rate of the loader once the batches that its processes prepare in advance have been taken."""
    loader = loader_of(config, workers, frozenset({"boxes"}))
    try:
        batches = iter(loader)
        for _ in range(workers * config.data.prefetch + 1):
            next(batches)
        start, n = time.perf_counter(), 0
        while time.perf_counter() - start < seconds or n < workers:
            next(batches)
            n += 1
        return n * config.batch_size / (time.perf_counter() - start)
    finally:
        loader.close()


def compare(path: Path, rate: float) -> dict[str, Any]:
    """Return the rate of the loader over that of the steps in the results of `trainer_step`."""
    rows = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    steps = [row["pairs_per_s"] for row in rows if row.get("side") == "ours" and "pairs_per_s" in row]
    return {"decoded_over_computed": rate / max(steps)} if steps else {"decoded_over_computed": None}


if __name__ == "__main__":
    main()
