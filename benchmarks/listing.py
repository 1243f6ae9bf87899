"""Benchmark: finding the finished shards of an output on S3, as a job does when it is started again.

    python -m benchmarks.listing [--shards 10000]

A server on this machine (moto) holds the names of all files of the shards, in folders of 1,000. `requests`: those of the
listing. `cpu_s`: CPU time of the client, `seconds`: wall time, most of which is the server's. `memory_mb`: memory that the
listing adds at most. `minutes_700000`: 700,000 shards at the CPU time per shard, or at `--latency` seconds per request, of
which 16 run at a time, whichever is longer.
"""

import argparse
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from benchmarks.fresh_process import measure_in_process
from pipeline.read.plan import make_plans
from pipeline.read.plans import CutFile
from pipeline.resume.finished import list_finished
from pipeline.resume.listing import list_output
from pipeline.write.store import Store
from schemas.files import FILES, INDEX_FILE, LAYOUT_FILE, MANIFEST_FILE
from schemas.layout import FOLDERS

TARGET = 700_000
CONCURRENT = 16
KINDS = (*(kind for kinds in FILES.values() for kind in kinds), INDEX_FILE, MANIFEST_FILE)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=10_000, help="number of shards")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of a request for 1,000 names")
    parser.add_argument("--measure", type=int, metavar="SHARDS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    S3FileSystem().mkdir("bench")
    backend: Any = s3_backends["123456789012"]["aws"]
    backend.put_object("bench", f"out/{LAYOUT_FILE}", json.dumps(FOLDERS._asdict()).encode())
    for index in range(options.shards):
        for kind in KINDS:
            backend.put_object("bench", f"out/{FOLDERS.path(kind, index)}", b"x")
    found = measure_in_process("listing", options.shards, threads=1)
    server.stop()
    factor = TARGET / options.shards
    slowest = max(found["cpu_s"], found["requests"] * options.latency / CONCURRENT)
    print(json.dumps({"name": "listing", **found, "minutes_700000": round(slowest * factor / 60, 2)}))


def measure(n_shards: int) -> dict[str, float]:
    """List the output, and compare it with the plan of its shards."""
    requests, request = Counter[str](), S3FileSystem._call_s3

    async def count(fs: S3FileSystem, method: str, *arguments: Any, **options: Any) -> Any:
        requests[method] += 1
        return await request(fs, method, *arguments, **options)

    S3FileSystem._call_s3 = count
    plans = make_plans([CutFile("a.parquet", 1, [[0, 0, 1], [1000 * n_shards, 0, 1]])], 1000)
    store = Store("s3://bench/out")
    assert store.layout == FOLDERS
    reset_peak()
    before, start, cpu = memory("VmRSS"), time.perf_counter(), time.process_time()
    finished = list_finished(list_output(store), plans, tuple(FILES))
    result = {"requests": requests.total(), "seconds": round(time.perf_counter() - start, 2)}
    result |= {"cpu_s": round(time.process_time() - cpu, 2), "memory_mb": round((memory("VmHWM") - before) / 1e6, 1)}
    assert len(finished) == n_shards == len(plans)
    return result


def memory(kind: str) -> int:
    """Return the memory of this process in bytes: `VmRSS` now, or `VmHWM` at most since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024


def reset_peak() -> None:
    """Forget how much memory this process has used (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
