"""The worker processes of a DataLoader: their signals, and their death."""

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from hypergrit_common.errors import UserError
from hypergrit_common.processes import end_with_parent
from hypergrit_common.text import one_line

T = TypeVar("T")

RAISED: Final = re.compile(r"Caught \w+ in DataLoader worker")
"""Beginning of the error of a DataLoader whose worker lives: its code raised."""


def next_result(results: Iterator[T]) -> T:
    """Return the next item of a DataLoader. Raises UserError if one of its processes was killed."""
    try:
        return next(results)
    except (RuntimeError, OSError, EOFError) as error:  # the last two: it died while it sent a batch
        message = str(error)
        if RAISED.match(message) or not (has_dead_process(results) or "DataLoader worker" in message):
            raise
        raise UserError(
            f"a loader process was killed ({one_line(error)}), probably because memory or /dev/shm ran out; lower "
            f"data.workers or data.prefetch, then repeat the command to resume"
        ) from error


def has_dead_process(results: object) -> bool:
    """Return True if a process of a DataLoader's iterator has ended. Waits a moment for one that is being killed."""
    for process in getattr(results, "_workers", ()):  # there is no public list
        process.join(0.2)
        if not process.is_alive():
            return True
    return False


def read_ahead(dataset: Dataset[T], workers: int, **options: Any) -> Iterator[T]:
    """The items of a dataset, unchanged, read by `workers` processes while the caller computes; 0: by this one.

    `options` are those of DataLoader.
    """
    loader = DataLoader(
        dataset,
        batch_size=None,
        collate_fn=identity,
        num_workers=workers,
        worker_init_fn=partial(init_worker, os.getpid()),
        generator=torch.Generator(),  # the default is the global one, whose state is checkpointed
        **options,
    )
    with preserve_sigchld_handler():
        return iter(loader)


def identity(item: T) -> T:
    """Return `item`, which is collated where it is read."""
    return item


@contextmanager
def preserve_sigchld_handler() -> Iterator[None]:
    """Restore the handler of SIGCHLD, which DataLoader replaces when it starts its processes.

    When a loader process dies, DataLoader's handler raises at an arbitrary point of the training code. Without it,
    the error is raised when the next batch is requested.
    """
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if threading.current_thread() is threading.main_thread() and before is not None:
        signal.signal(signal.SIGCHLD, before)


def init_worker(parent: int, _: int) -> None:
    """Use one thread, end with the process `parent`, and leave to it the signals that stop a run.

    A scheduler, a container or a terminal sends them to every process, and the parent needs batches until it stops.
    """
    # A process of the fork server, the default from Python 3.14 on, ends with that server, which ends with the parent.
    end_with_parent(os.getppid() if multiprocessing.get_start_method() == "forkserver" else parent)
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # Linux
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=end_by_parent, args=(parent,), name="SIGTERM", daemon=True).start()
    cv2.setNumThreads(0)


def end_by_parent(parent: int) -> None:
    """End this process at a SIGTERM of the process `parent`, with which DataLoader and Python stop workers. Ignore all others."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
