"""Run `tests.pipeline.output.write.crashes` in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

from tests.pipeline.output.write.crashes import Case

ROOT = Path(__file__).parents[4]


def run_crashes(scratch: Path, *cases: Case) -> list[int]:
    """Return the number of faults of each case; the assertion error of a wrong output is in the message."""
    command = [sys.executable, "-m", "tests.pipeline.output.write.crashes", str(scratch), *map(json.dumps, cases)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    return [int(line) for line in done.stdout.split()]
