"""Processes whose names are no text."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypergrit_common.processes import descendants, start_of, started_at

RENAME = """
with open("/proc/self/comm", "wb") as file:
    file.write(b"\\xff) Z \\xfe")
print(flush=True)
input()
"""


@pytest.fixture
def renamed() -> Iterator[int]:
    """A process whose name is not UTF-8 and contains what separates the name from the state."""
    if not Path("/proc/self/comm").exists():
        pytest.skip("the names of processes are in /proc/PID/comm on Linux only")
    with subprocess.Popen([sys.executable, "-c", RENAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_process_whose_name_is_not_utf_8_is_found(renamed: int) -> None:
    started = descendants(os.getpid())[renamed]
    assert started_at(renamed) == started
    assert start_of(renamed) == int(started)
