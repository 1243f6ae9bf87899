"""Scan tars in child processes, one per core."""

import os
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import Final

from common.errors import UserError
from pipeline.read.config import ReadConfig
from pipeline.read.tars import Scan, scan_tar, scan_tars
from pipeline.rescue.child import Child, ProcessDiedError, RemoteError, StepTimeoutError

FEW: Final = 8
"""Tars up to which the start of processes takes longer than it saves."""
TIMEOUT_S: Final = 24 * 3600.0
"""Longest time for a tar."""


class TarScanner:
    """Scans tars one at a time; the object of a child process."""

    def __init__(self, config: ReadConfig, limit: int | None) -> None:
        self.config, self.limit = config, limit

    def scan(self, path: str, size: int) -> Scan:
        """Find the samples of a tar."""
        return scan_tar(path, size, self.config, self.limit)


def scan_in_processes(
    files: Sequence[tuple[str, int]], config: ReadConfig, limit: int | None
) -> Generator[Scan, None, None]:
    """Scan tars, a few of them in this process and more in one process per core: a `pipeline.read.tars.Scanner`."""
    n_processes = min(len(os.sched_getaffinity(0)), len(files))
    if len(files) <= FEW or n_processes == 1:
        yield from scan_tars(files, config, limit)
        return
    idle = SimpleQueue[Child]()
    with ExitStack() as stack:
        for _ in range(n_processes):
            idle.put(stack.enter_context(Child(partial(TarScanner, config, limit))))
        pool = ThreadPoolExecutor(n_processes)
        # Before the processes are killed, so that no thread starts another one.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield from pool.map(partial(scan_in, idle), files)


def scan_in(idle: "SimpleQueue[Child]", file: tuple[str, int]) -> Scan:
    """Scan a tar in the next idle process. Raises UserError."""
    child = idle.get()
    try:
        found: Scan = child.call("scan", *file, timeout_s=TIMEOUT_S)
        return found
    except (ProcessDiedError, StepTimeoutError, RemoteError) as error:
        raise UserError(
            f"cannot scan input file {file[0]}: {error}; replace the file, or remove it from the input"
        ) from error
    finally:
        idle.put(child)
