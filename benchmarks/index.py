"""Benchmark: indexing shards from the pipeline's `_index/`, compared with walking the headers of their tars.

    python -m benchmarks.index [--shards 1000] [--samples 1000]

An output with 10^6 samples of 12 members is described by real index files and manifests; its tars have the right sizes
but no content, which the trainer does not read. `seconds`: time to list the shards and build the index of all samples,
of the members that a model with boxes needs. `bytes_per_sample`: size of the index files. `ratio`: seconds per sample
of walking the headers of a tar, over those of reading the index, on one core each.
"""

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path

from common.shards import list_shards
from pipeline.write.index import write_index
from pipeline.write.tar import Place, SamplePlace, TarWriter
from trainer.data.headers import index_shard
from trainer.data.indexing import build_index

BOXES = [f"parent{i:03d}.{kind}" for i in range(4) for kind in ("jpg", "txt")]
MEMBERS = ("child.jpg", "child.txt", "numparents.txt", *BOXES, "json")
MEMBER_BYTES = 4096
WALKED = 2000  # samples whose headers are walked


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1000, help="number of shards")
    parser.add_argument("--samples", type=int, default=1000, help="samples of each of them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        n_bytes = write_output(Path(name), options.shards, options.samples)
        start = time.perf_counter()
        index = build_index(list_shards(name), needs=frozenset({"boxes"}))
        seconds = time.perf_counter() - start
        walked = walk(Path(name, "walked.tar"))
    n = options.shards * options.samples
    assert index.n_samples == n
    print(
        f"{n} samples in {options.shards} shards: {seconds:.2f} s from the index, {1e6 * seconds / n:.2f} us a sample"
    )
    print(f"headers of {WALKED} samples: {1e6 * walked:.1f} us a sample")
    result = {"name": "index", "ratio": round(walked * n / seconds, 1), "seconds": round(seconds, 2)}
    print(json.dumps(result | {"bytes_per_sample": round(n_bytes / n, 1)}))


def write_output(folder: Path, n_shards: int, n_samples: int) -> int:
    """Write manifests, index files and empty tars of the right sizes. Returns the bytes of the index files."""
    for name in ("train", "_index", "_manifests"):
        (folder / name).mkdir()
    total = 0
    for shard in range(n_shards):
        end, samples = 0, []
        for number in range(n_samples):
            start, places = end, []
            for name in MEMBERS:
                places.append(Place(name, end + 512, MEMBER_BYTES))
                end += 512 + MEMBER_BYTES
            samples.append(SamplePlace(f"{number:012d}", start, end, places))
        index, tar = f"_index/{shard:05d}.arrow", f"train/{shard:05d}.tar"
        with (folder / index).open("wb") as file:
            write_index(file, {"train": samples}, {})
        with (folder / tar).open("wb") as file:
            file.truncate(end + 1024)
        content = (folder / index).read_bytes()
        files = {
            index: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "rows": n_samples},
            tar: {"bytes": end + 1024, "sha256": "0" * 64, "rows": n_samples},
        }
        (folder / "_manifests" / f"{shard:05d}.json").write_text(json.dumps({"files": files}))
        total += len(content)
    return total


def walk(path: Path) -> float:
    """Return the seconds per sample of indexing a tar from its headers."""
    with path.open("wb", buffering=0) as file, TarWriter(file) as tar:
        for number in range(WALKED):
            tar.add_sample(f"{number:012d}", [(name, bytes(MEMBER_BYTES)) for name in MEMBERS])
    start = time.perf_counter()
    assert len(index_shard(str(path))) == WALKED
    return (time.perf_counter() - start) / WALKED


if __name__ == "__main__":
    main()
