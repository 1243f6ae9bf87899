"""Benchmark: planning the shards of a large input, and the bytes that a worker reads for a shard.

    python -m benchmarks.plan [--rows 1000000] [--formats parquet jsonl csv tar indexed]

Each input is made, planned in a process of its own as by a new job (listing, counting, hashing), and removed. Tars hold
samples of img2dataset, of 3 members and 30 kB, as holes of their files; `indexed` are tars of an output, with `_index/`.
`rows_per_s`: rows planned per second of wall time with `processes` processes. `rows_per_cpu_s`: per second of CPU time of
all of them, which other work on the machine changes less. `hours`: 7.5e8 rows at the latter rate on one core.
`read_mb`: MB read for a shard in the middle of a row group of 10^6 rows. `read_on_mb`: for each of the next 100 shards.
"""

import argparse
import hashlib
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fresh_process import measure_in_process
from pipeline.config import load_config
from pipeline.read.listing import list_files
from pipeline.read.stage import read_shard
from pipeline.resume.history import plan_history
from pipeline.resume.record import plans_of
from pipeline.write.index import write_index
from pipeline.write.tar import BLOCK, Place, SamplePlace, header
from schemas.files import FILES, INDEX_FILE, MANIFEST_FILE
from schemas.layout import FLAT

TARGET = 750_000_000
PER_FILE = 10_000  # samples of a tar
IMAGE_BYTES = 30_000


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each input, a multiple of 10,000")
    parser.add_argument("--formats", nargs="+", default=[*WRITERS], choices=[*WRITERS])
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "ROWS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    result: dict[str, object] = {"name": "plan"}
    for kind in options.formats:
        with tempfile.TemporaryDirectory() as name:
            WRITERS[kind](Path(name), options.rows)
            found = measure_in_process("plan", name, options.rows, threads=1)
        print(f"{kind}: {found}", flush=True)
        result |= {f"{kind}_{key}": value for key, value in found.items()}
    print(json.dumps(result))


def measure(folder: str, n_rows: str) -> dict[str, float]:
    """Plan the input in `folder`, and read a shard from the middle of a parquet file."""
    config = load_config([f"input={folder}/in", f"output={folder}/out", "rows_per_shard=1000"])
    start, cpu = time.perf_counter(), cpu_seconds()
    files = list_files(config.input)
    plans = plans_of(plan_history(files, None, config).batches, config.rows_per_shard)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    assert sum(plan.n_rows for plan in plans) == int(n_rows)
    result = {
        "rows_per_s": round(int(n_rows) / seconds),
        "rows_per_cpu_s": round(int(n_rows) / cpu),
        "hours": round(TARGET * cpu / int(n_rows) / 3600, 2),
        "processes": os.cpu_count() or 1,
    }
    if files[0][0].endswith(".parquet"):
        half = len(plans) // 2
        for name, chosen in (("read_mb", plans[half : half + 1]), ("read_on_mb", plans[half + 1 : half + 101])):
            read = bytes_read()
            for plan in chosen:
                read_shard(plan, config.read)
            result[name] = round((bytes_read() - read) / 1e6 / len(chosen), 2)
    return result


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def bytes_read() -> int:
    """Return the bytes that this process has read from files, cached or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def url(i: int) -> str:
    """Return the URL of a row; its last part does not compress."""
    return f"https://img.example-{i % 5003}.org/photos/{i * 2654435761 % 2**64:016x}{i * 40503 % 2**32:08x}.jpg"


def caption(i: int) -> str:
    """Return the caption of a row, of about 60 characters."""
    return f"picture {i} of a brown dog that runs along the beach near {i * 7919 % 100_003}, a town"


def write_parquet(folder: Path, n_rows: int) -> None:
    """Write files with row groups of 10^6 rows: URL, caption and three numbers."""
    (folder / "in").mkdir()
    for first in range(0, n_rows, 1_000_000):
        rows = range(first, min(first + 1_000_000, n_rows))
        columns: dict[str, list[object]] = {
            "url": [url(i) for i in rows],
            "caption": [caption(i) for i in rows],
            "similarity": [(i * 7919 % 10**6) / 10**6 for i in rows],
            "pwatermark": [(i * 104_729 % 10**6) / 10**6 for i in rows],
            "hash": [i * 2654435761 % 2**61 for i in rows],
        }
        pq.write_table(pa.table(columns), folder / "in" / f"{first:010d}.parquet", row_group_size=1_000_000)


def write_lines(folder: Path, n_rows: int, name: str, first_line: str, line: Callable[[int], str]) -> None:
    """Write files of 10^6 lines."""
    (folder / "in").mkdir()
    for first in range(0, n_rows, 1_000_000):
        with (folder / "in" / f"{first:010d}{name}").open("w") as file:
            file.write(first_line)
            file.writelines(line(i) for i in range(first, min(first + 1_000_000, n_rows)))


def write_jsonl(folder: Path, n_rows: int) -> None:
    """Write JSONL files."""
    write_lines(folder, n_rows, ".jsonl", "", lambda i: json.dumps({"url": url(i), "caption": caption(i)}) + "\n")


def write_csv(folder: Path, n_rows: int) -> None:
    """Write CSV files, in which every caption is quoted."""
    write_lines(folder, n_rows, ".csv", "url,caption\n", lambda i: f'{url(i)},"{caption(i)}"\n')


def write_tars(folder: Path, n_rows: int) -> None:
    """Write a tar of samples as img2dataset does, with images that are holes of the file; the others are links to it."""
    (folder / "in").mkdir()
    first = folder / "in/00000.tar"
    write_tar(first)
    for number in range(1, n_rows // PER_FILE):
        os.link(first, folder / f"in/{number:05d}.tar")


def write_tar(path: Path) -> list[SamplePlace]:
    """Write a tar of PER_FILE samples; return their places."""
    samples = list[SamplePlace]()
    with path.open("wb") as file:
        for i in range(PER_FILE):
            start, places = file.tell(), list[Place]()
            for suffix, size in (("jpg", IMAGE_BYTES), ("txt", 80), ("json", 700)):
                file.write(header(b"%012d.%s" % (i, suffix.encode()), size))
                places.append(Place(suffix, file.tell(), size))
                file.seek(-(-size // BLOCK) * BLOCK, os.SEEK_CUR)
            samples.append(SamplePlace(f"{i:012d}", start, file.tell(), places))
        file.write(bytes(2 * BLOCK))
    return samples


def write_indexed(folder: Path, n_rows: int) -> None:
    """Write the tars, indices and manifests of an output; all are links to the first."""
    root = folder / "in"
    for name in ("grit", "_index", "_manifests"):
        (root / name).mkdir(parents=True)
    kinds = FILES["grit"][0], INDEX_FILE, MANIFEST_FILE
    tar, index = (root / FLAT.path(kind, 0) for kind in kinds[:2])
    samples = write_tar(tar)
    with index.open("wb") as file:
        write_index(file, {"grit": samples}, {})
    facts = {"bytes": index.stat().st_size, "sha256": hashlib.sha256(index.read_bytes()).hexdigest()}
    for number in range(n_rows // PER_FILE):
        names = [FLAT.path(kind, number) for kind in kinds]
        (root / names[2]).write_text(json.dumps({"files": {names[0]: {"bytes": tar.stat().st_size}, names[1]: facts}}))
        for source, name in zip((tar, index), names, strict=False):
            if number:
                os.link(source, root / name)


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "parquet": write_parquet,
    "jsonl": write_jsonl,
    "csv": write_csv,
    "tar": write_tars,
    "indexed": write_indexed,
}


if __name__ == "__main__":
    main()
