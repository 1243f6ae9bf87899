"""Run `tests.pipeline.output.write.crashes` in a process of its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def run_crashes(output: str, kind: str, scratch: Path, stride: int, offset: int, replaces: bool = False) -> int:
    """Return the number of faults; the assertion error of a wrong output is in the message."""
    command = [
        sys.executable,
        "-m",
        "tests.pipeline.output.write.crashes",
        output,
        kind,
        str(stride),
        str(offset),
        str(scratch),
        *(["replace"] if replaces else []),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    return int(done.stdout.split()[-1])
