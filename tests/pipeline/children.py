"""The child processes of the jobs in tests, forked from one that has imported the packages.

That saves the seconds in which each would import torch, spaCy and pyarrow. What happens in a child and how it ends is
the same: signals, exit codes, limits of memory, the end with its parent.
"""

import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from hypergrit_common.paths import repository_root
from pipeline import faults
from tests.forks import CONTEXT, take_over

used = {"seconds": 0.0}
"""CPU time of the children that were killed here: they are no children of this process, whose usage lacks them."""


class Descriptors(tuple[int, ...]):
    """File descriptors of this process, which the started one gets as copies."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, ([DupFd(number) for number in self],))


class Forked:
    """A process that serves the connection with this file descriptor: what `faults.Child` uses of a `Popen`."""

    def __init__(self, descriptor: int) -> None:
        self._process = CONTEXT.Process(
            target=serve, args=(Descriptors((descriptor, 1, 2)), dict(os.environ), os.getcwd())
        )
        self._process.start()
        self.pid = self._process.pid

    def kill(self) -> None:
        """End the process."""
        with suppress(OSError, ValueError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            used["seconds"] += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("child", timeout or 0.0)
        return self._process.exitcode


def serve(descriptors: list[Any], variables: dict[str, str], folder: str) -> None:
    """Run the child's part of `faults.Child`, with the environment, folder and outputs of the test process."""
    connection, *outputs = (each.detach() for each in descriptors)
    take_over(variables, folder, outputs)
    sys.argv = ["-c", str(connection), str(repository_root()), str(os.getppid())]
    faults.main()
