"""Benchmark: the tar writer of the pipeline (pipeline/output/write/tar.py) compared with webdataset.TarWriter on one core.

    python -m benchmarks.write [n_samples]

A sample consists of a JPEG of 50 KB (random bytes, as neither writer decodes it) and a JSON with a caption, boxes and a
parse. The JSON is encoded beforehand, because encoding takes 20 us per sample with either writer. The writers write the
same samples in alternating rounds. `ratio` compares the writers alone. `ratio_with_sha256` includes the SHA-256 of the
tar, which our manifests contain and TarWriter does not compute.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import webdataset

from benchmarks.turns import take_turns, use_one_core
from pipeline.output.commit import HashedFile
from pipeline.output.write.samples import to_json
from pipeline.output.write.tar import TarWriter

ROUNDS = 7
Sample = dict[str, Any]
Writer = Callable[[list[Sample], Path], None]


def make_samples(n: int) -> list[Sample]:
    """Return `n` samples in webdataset's format."""
    rng = random.Random(0)
    meta = {
        "caption": "a wire hanger with a paper cover that reads we heart our customers",
        "boxes": [
            {"phrase": i, "x_min": 0.1, "y_min": 0.2, "x_max": 0.7, "y_max": 0.8, "score": 0.79298526} for i in range(3)
        ],
        "tokens": [{"start": 2 * i, "end": 2 * i + 1, "head": 0, "dep": "det", "pos": "DET"} for i in range(13)],
    }
    return [
        {"__key__": f"{i:012d}", "jpg": rng.randbytes(50_000), "json": to_json({"key": i, **meta})} for i in range(n)
    ]


def webdataset_writer(samples: list[Sample], path: Path) -> None:
    """Write with webdataset."""
    with webdataset.TarWriter(str(path)) as tar:
        for sample in samples:
            tar.write(sample)


def ours(samples: list[Sample], path: Path, *, hashed: bool = False) -> None:
    """Write with our writer; `hashed`: compute the SHA-256 of the file too."""
    with path.open("wb", buffering=0) as file, TarWriter(HashedFile(file) if hashed else file) as tar:
        for sample in samples:
            tar.add_sample(sample["__key__"], (("jpg", sample["jpg"]), ("json", sample["json"])))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=1000, help="number of samples")
    samples = make_samples(parser.parse_args().n)
    use_one_core()
    writers: dict[str, Writer] = {
        "webdataset.TarWriter": webdataset_writer,
        "ours": ours,
        "ours with sha256": partial(ours, hashed=True),
    }
    with tempfile.TemporaryDirectory() as folder:
        calls = {name: partial(write, samples, Path(folder, "out.tar")) for name, write in writers.items()}
        median = {name: seconds.cpu for name, seconds in take_turns(calls, ROUNDS).items()}
    print(f"{len(samples)} samples of 50 KB, CPU time, median of {ROUNDS} rounds")
    print(f"{'writer':<24}{'us/sample':>12}{'samples/s':>12}{'ratio':>8}")
    for name, value in median.items():
        rate = len(samples) / value
        print(f"{name:<24}{1e6 / rate:>12.0f}{rate:>12.0f}{median['webdataset.TarWriter'] / value:>8.2f}")
    result = {
        "name": "write",
        "ratio": round(median["webdataset.TarWriter"] / median["ours"], 2),
        "ratio_with_sha256": round(median["webdataset.TarWriter"] / median["ours with sha256"], 2),
        "samples_per_s": round(len(samples) / median["ours"]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
