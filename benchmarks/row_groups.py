"""Benchmark: how often the rows of a parquet file are decoded by a reader for all workers, and by workers in turn.

    python -m benchmarks.row_groups [--rows 200000] [--rows-per-shard 2000] [--workers 1 4 16]

A job on a cluster has one reader, which packs the rows of each shard for its worker (pipeline.read.ahead). Without it,
each worker keeps the place at which it stopped reading. The table shows, for row groups of one shard, of ten and of the
whole file, the rows that are decoded and the bytes that are read, both as multiples of those of the file. The processes
are simulated one after the other on a local file. The last line has the rate of the reader and of unpacking its rows,
and the bytes that it passes on.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.plan import bytes_read, caption, url
from pipeline.config import PipelineConfig, load_config
from pipeline.read import row_groups
from pipeline.read.ahead import pack_rows, provided
from pipeline.read.listing import list_files
from pipeline.read.types import ShardPlan
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
    print("rows of a group  process    decoded  read")
    for size in (options.rows_per_shard, 10 * options.rows_per_shard, options.rows):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "in.parquet")
            pq.write_table(table, path, row_group_size=size)
            for n_workers in (0, *options.workers):
                config = load_config(
                    [f"input={path}", f"output={folder}/out", f"rows_per_shard={options.rows_per_shard}"]
                )
                decoded, read = measure(config, n_workers)
                n_bytes, name = path.stat().st_size, f"{n_workers} workers" if n_workers else "reader"
                print(f"{size:15,}  {name:10}{decoded / options.rows:8.1f}{read / n_bytes:6.1f}", flush=True)
            rates = reader_rates(config)
    print(json.dumps({"benchmark": "row_groups", **rates}))


def plans_for(config: PipelineConfig) -> list[ShardPlan]:
    """The shards of the file."""
    return list(plans_of(plan_history(list_files(config.input), None, config).batches, config.rows_per_shard))


def reader_rates(config: PipelineConfig) -> dict[str, float]:
    """Rows a second of the reader, and of a worker that unpacks them; bytes a row between them."""
    row_groups._last = []
    plans, start = plans_for(config), time.perf_counter()
    packed = [pack_rows(plan, config.read) for plan in plans]
    read, n_rows = time.perf_counter(), sum(plan.n_rows for plan in plans)
    for plan, rows in zip(plans, packed, strict=True):
        with provided(plan, rows):
            read_pieces(plan, config)
    n_bytes = sum(len(stream) for rows in packed for stream in rows or ())
    end = time.perf_counter()
    return {
        "reader_rows_s": round(n_rows / (read - start)),
        "unpack_rows_s": round(n_rows / (end - read)),
        "bytes_per_row": round(n_bytes / n_rows, 1),
    }


def read_pieces(plan: ShardPlan, config: PipelineConfig) -> None:
    """Read the batches of a shard."""
    for piece in plan.pieces:
        for _ in row_groups.read_batches(piece, config.read):
            pass


def measure(config: PipelineConfig, n_workers: int) -> tuple[int, int]:
    """Read all shards of a file by workers in turn, or by the reader if there are none.

    Returns the rows that are decoded and the bytes that are read.
    """
    plans = plans_for(config)
    read: Callable[[ShardPlan, Any], Any] = read_pieces if n_workers else lambda plan, _: pack_rows(plan, config.read)
    workers: list[list[row_groups.Stream]] = [[] for _ in range(max(1, n_workers))]
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
            row_groups._last = workers[i % len(workers)]
            read(plan, config)
    finally:
        row_groups.Stream._read, row_groups._last = real, []  # type: ignore[method-assign]
    return n_rows, bytes_read() - before


if __name__ == "__main__":
    main()
