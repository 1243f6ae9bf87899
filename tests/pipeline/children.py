"""The child processes of the jobs in tests, forked from one that has imported the packages.

That saves the seconds in which each would import torch, spaCy and pyarrow. What happens in a child and how it ends is
the same: signals, exit codes, limits of memory, the end with its parent.
"""

import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from hypergrit_common.paths import repository_root
from pipeline import faults

used = {"seconds": 0.0}
"""CPU time of the children that were killed here: they are no children of this process, whose usage lacks them."""


class Descriptors(tuple[int, ...]):
    """File descriptors of this process, which the started one gets as copies."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, ([DupFd(number) for number in self],))


class Forked:
    """A process that serves the connection with this file descriptor: what `faults.Child` uses of a `Popen`."""

    def __init__(self, descriptor: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.e2e.preload"])
        self._process = context.Process(
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
    """Be the child of `faults.Child`, with the environment, the folder and the outputs of the process that asked for it."""
    connection, *outputs = (each.detach() for each in descriptors)
    for number, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = ["-c", str(connection), str(repository_root()), str(os.getppid())]
    faults.main()
