"""Benchmark: a job of pairs (jobs/pipeline/pairs.yaml) beside its download stage alone and a job with boxes, on one core.

    python -m benchmarks.pairs [n_images]

All fetch the same images of 500 px, which `web.py` serves on another core, in alternating rounds, each in this
process without Ray. `ratio` is the CPU time per image of the job of pairs over that of the download stage: at 1.0,
cleaning the captions and writing the shard add no time. `to_boxes` is that of a job with the miniature models over it.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.download import ROUNDS, served, time_alternately
from pipeline.config import load_config
from pipeline.read.plan import plan_shards
from pipeline.run.provenance import make_provenance
from pipeline.run.steps import Steps
from schemas.table import kept_indices

JOB: Final = Path(__file__).resolve().parents[1] / "jobs" / "pipeline" / "pairs.yaml"
AREA: Final = "download.resize.kernel=area"


def build(arguments: list[str], only_download: bool = False) -> Callable[[], int]:
    """Return a function that computes the shard of a job, and returns the number of kept rows."""
    config = load_config(arguments)
    (plan,) = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    steps = Steps(config, make_provenance(config))

    def download() -> int:
        table, _ = steps.download(plan, steps.read(plan))
        return len(kept_indices(table))

    def run() -> int:
        for file in Path(config.output).glob("_manifests/*"):
            file.unlink()
        manifest = steps.write(plan, *steps.infer(plan, *steps.prepare(plan))).manifest
        return int(manifest["counts"]["kept"])

    return download if only_download else run


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=400, help="number of images")
    n: int = parser.parse_args().n
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as ports:
        folder = Path(name)
        rows = {
            "url": [f"http://127.0.0.1:{ports['http']}/500/{i}" for i in range(n)],
            "caption": [f"a red dog in a garden, number {i}" for i in range(n)],
        }
        pq.write_table(pa.table(rows), folder / "in.parquet")
        shared = [
            f"input={folder / 'in.parquet'}", f"rows_per_shard={n}", "download.allowed_private_hosts=[127.0.0.1]",
            "download.concurrency_per_host=64",
        ]  # fmt: skip
        pairs = [str(JOB), *shared]
        runs = {
            "download": build([*pairs, f"output={folder / 'a'}"], only_download=True),
            "pairs": build([*pairs, f"output={folder / 'b'}"]),
            "boxes": build([*shared, f"output={folder / 'c'}", "ground.keep_pairs=true", AREA]),
        }
        cpu_s, wall_s = time_alternately(runs, n)
    print(f"{n} images, medians of {ROUNDS} rounds, one core")
    for name in runs:
        print(f"{name:<10}{1e6 * cpu_s[name]:>10.0f} CPU us/image{1 / wall_s[name]:>10.0f} images/s")
    record = {"name": "pairs", "ratio": round(cpu_s["pairs"] / cpu_s["download"], 3)}
    print(json.dumps({**record, "to_boxes": round(cpu_s["boxes"] / cpu_s["pairs"], 1)}))


if __name__ == "__main__":
    main()
