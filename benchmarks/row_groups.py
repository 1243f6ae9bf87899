"""Benchmark: how often the rows of a parquet file are decoded if several workers take its shards in turn.

    python -m benchmarks.row_groups [--rows 200000] [--rows-per-shard 2000] [--workers 1 4 16]

Each worker keeps the place at which it stopped reading, as the processes of a cluster do. The table shows, for row groups
of one shard, of ten and of the whole file, the rows that are decoded and the bytes that are read, both as multiples of
those of the file. The workers are simulated one after the other on a local file.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.plan import bytes_read, caption, url
from pipeline.config import load_config
from pipeline.read import row_groups
from pipeline.read.listing import list_files
from pipeline.resume.history import plan_history
from pipeline.resume.record import plans_of


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rows-per-shard", type=int, default=2_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    rows = range(options.rows)
    table = pa.table({"url": [url(i) for i in rows], "caption": [caption(i) for i in rows]})
    print("rows of a group  workers  decoded  read")
    for size in (options.rows_per_shard, 10 * options.rows_per_shard, options.rows):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "in.parquet")
            pq.write_table(table, path, row_group_size=size)
            for n_workers in options.workers:
                decoded, read = measure(path, n_workers, options.rows_per_shard)
                n_bytes = path.stat().st_size
                print(f"{size:15,}{n_workers:9}{decoded / options.rows:9.1f}{read / n_bytes:6.1f}", flush=True)


def measure(path: Path, n_workers: int, rows_per_shard: int) -> tuple[int, int]:
    """Read all shards of a file by workers in turn; return the rows that are decoded and the bytes that are read."""
    config = load_config([f"input={path}", f"output={path.parent}/out", f"rows_per_shard={rows_per_shard}"])
    plans = plans_of(plan_history(list_files(config.input), None, config).batches, rows_per_shard)
    workers: list[list[row_groups.Stream]] = [[] for _ in range(n_workers)]
    n_rows, real = 0, row_groups.Stream._read

    def counted(stream: row_groups.Stream, group: int) -> Iterator[Any]:
        nonlocal n_rows
        for row, batch in real(stream, group):
            n_rows += batch.num_rows
            yield row, batch

    row_groups.Stream._read = counted  # type: ignore[assignment, method-assign]
    before = bytes_read()
    try:
        for i, plan in enumerate(plans):
            row_groups._last = workers[i % n_workers]
            for piece in plan.pieces:
                for _ in row_groups.read_batches(piece, config.read):
                    pass
    finally:
        row_groups.Stream._read, row_groups._last = real, []  # type: ignore[method-assign]
    return n_rows, bytes_read() - before


if __name__ == "__main__":
    main()
