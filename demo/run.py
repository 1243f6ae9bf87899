"""The demo, from nothing to a report: `python -m demo.run`, or `make demo` which also installs.

Makes the input, serves its images on 127.0.0.1, starts a Ray, submits pipeline/grit.py to it, and compares the boxes
with the truth. A second run finds its shards finished. Ctrl-C ends everything that was started.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from common.errors import UserError
from demo.local_ray import local_ray, submit
from demo.local_web import server, usable_port
from demo.make_input import N_ROWS, write_input
from demo.serve import HOST
from demo.truth_report import read_truth, rows_of, table_of, truth_figures, unexpected_drops
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="demo/ and demo_input/ are made in it")
    parser.add_argument("--rows", type=int, default=N_ROWS, help="rows of the input")
    parser.add_argument("--cpus", type=int, default=max(os.cpu_count() or 2, 2), help="CPUs that Ray may use")
    parser.add_argument("--fresh", action="store_true", help="remove the output of an earlier run first")
    options = parser.parse_args()
    # As Ctrl-C: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, interrupt)
    start = time.monotonic()
    output, folder = options.out.resolve() / "demo", options.out.resolve() / "demo_input"
    if options.fresh:
        shutil.rmtree(output, ignore_errors=True)
    try:
        run(output, folder, options.rows, options.cpus)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (RuntimeError, OSError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{time.monotonic() - start:.0f} s in all\nreport: {output / 'report.html'}")
    return 0


def interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def run(output: Path, folder: Path, n_rows: int, n_cpus: int) -> None:
    """Input, job, truth, report. Raises RuntimeError when the server, Ray or the job fails."""
    port = usable_port()
    before = digest(folder / "pairs.parquet")
    rows = write_input(folder, n_rows, port)
    if digest(folder / "pairs.parquet") != before:
        shutil.rmtree(output, ignore_errors=True)  # shards of another input: there may be more of them than of this one
    say(f"{len(rows)} rows made in {folder}")
    with server(port, output.parent / "server.log"):
        say(f"images served on http://{HOST}:{port}; starting Ray")
        with local_ray(n_cpus, output.parent / "ray.log") as ray:
            say(f"Ray listens on {ray.address}; submitting the job")
            job = ["pipeline/grit.py", "jobs/demo.yaml", f"input={folder / 'pairs.parquet'}", f"output={output}"]
            job.append("report.summary=false")  # it comes below, with the truth
            if submit(ray, ROOT, [sys.executable, *job]) != 0:
                raise RuntimeError("the job failed; its log is above")
    truth = truth_figures(rows_of(output), read_truth(folder))
    stats = build_stats(str(output), truth=truth)
    write_report(str(output))
    print(f"\n{summary_table(stats)}\n\n{table_of(truth)}\n")
    odd = unexpected_drops(stats, json.loads((folder / "expected.json").read_text("utf-8")))
    print("\n".join(f"warning: {line}" for line in odd) or "every bad row was dropped for the reason it was made for")


def digest(path: Path) -> str | None:
    """SHA-256 of a file, None if it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
