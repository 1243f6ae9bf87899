"""Measurements in processes of their own, so that neither memory nor caches of one change another."""

import json
import os
import subprocess
import sys
from typing import Any


def measure_in_process(module: str, *arguments: object, threads: int) -> dict[str, Any]:
    """Run `python -m benchmarks.MODULE --measure ARGUMENTS`; return the JSON object in the last line of its output."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--measure", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result
