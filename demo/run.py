"""Run the demo: `python -m demo.run`, or `make demo`, which also installs the environment.

Writes the input, serves its images on 127.0.0.1, starts a local Ray, submits pipeline/grit.py to it, and compares the
boxes with the ground truth. A second run reuses finished shards. Ctrl-C stops all started processes.
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from demo.local import local_ray, server, submit, usable_port
from demo.make_input import N_ROWS, write_input
from demo.serve import HOST
from demo.truth_report import format_table, read_rows, read_truth, truth_metrics, unexpected_drops
from hypergrit_common.cli import BUG, EXIT_CODES, command
from hypergrit_common.config_help import print_text
from hypergrit_common.text import message_lines
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table

EXPLORE: Final = ".venv/bin/hypergrit explore"
ROOT = Path(__file__).resolve().parent.parent


@command("finished shards are kept; run the same command again to resume")
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], epilog=EXIT_CODES)
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="folder of the outputs demo/ and demo_input/")
    parser.add_argument("--rows", type=int, default=N_ROWS, help="number of input rows")
    parser.add_argument("--cpus", type=int, default=max(os.cpu_count() or 2, 2), help="CPUs that Ray may use")
    parser.add_argument("--fresh", action="store_true", help="delete the output of an earlier run first")
    options = parser.parse_args()
    start = time.monotonic()
    output, folder = options.out.resolve() / "demo", options.out.resolve() / "demo_input"
    if options.fresh:
        shutil.rmtree(output, ignore_errors=True)
    try:
        run(output, folder, options.rows, options.cpus)
    except (RuntimeError, OSError) as error:  # its message may end with lines of a log
        print(message_lines(f"error: {error}"), file=sys.stderr)
        return BUG
    print_text(f"finished in {time.monotonic() - start:.0f} s\nreport: {output / 'report.html'}")
    print_text(f"every row: {EXPLORE} {shlex.quote(os.path.relpath(output))}")
    return 0


def run(output: Path, folder: Path, n_rows: int, n_cpus: int) -> None:
    """Write the input, run the job, and report the results.

    Raises RuntimeError if the image server, Ray or the job fails.
    """
    port = usable_port()
    old_digest = digest(folder / "pairs.parquet")
    rows = write_input(folder, n_rows, port)
    if digest(folder / "pairs.parquet") != old_digest:
        shutil.rmtree(output, ignore_errors=True)  # another input may have left more shards than this one has
    print_status(f"wrote {len(rows)} input rows to {folder}")
    with server(port, output.parent / "server.log"):
        print_status(f"serving images on http://{HOST}:{port}; starting Ray")
        with local_ray(n_cpus, output.parent / "ray.log") as ray:
            print_status(f"Ray is running at {ray.address}; submitting the job")
            job = ["pipeline/grit.py", "jobs/demo.yaml", f"input={folder / 'pairs.parquet'}", f"output={output}"]
            job.append("report.summary=false")  # printed below, together with the ground truth
            job.append("overwrite=true")  # of an earlier version of the code or of the models
            if submit(ray, ROOT, [sys.executable, *job]) != 0:
                raise RuntimeError("the job failed; see its log above")
    truth = truth_metrics(read_rows(output), read_truth(folder))
    stats = build_stats(str(output), truth=truth)
    write_report(str(output))
    print_text(f"\n{summary_table(stats)}\n\n{format_table(truth)}\n")
    differences = unexpected_drops(stats, json.loads((folder / "expected.json").read_text("utf-8")))
    warnings = "\n".join(f"warning: {line}" for line in differences)
    print_text(warnings or "all rows with problems were dropped as expected")


def digest(path: Path) -> str | None:
    """Return the SHA-256 of a file; None if it does not exist."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def print_status(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
