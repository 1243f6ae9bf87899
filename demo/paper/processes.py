"""Work on many cases in processes of one thread, with lines of progress."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from typing import TypeVar

import torch

Case = TypeVar("Case")


def report(text: str) -> None:
    """Print a line of progress."""
    print(f"paper: {text}", flush=True)


def each(work: Callable[[Case], str], cases: Sequence[Case], n_jobs: int) -> None:
    """Do the work of each case in one of `n_jobs` processes, and report what it returns."""
    start, before = time.monotonic(), {*active_children()}
    with ProcessPoolExecutor(n_jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for done, future in enumerate(as_completed([pool.submit(work, case) for case in cases]), 1):
                left = (time.monotonic() - start) / done * (len(cases) - done) / 60
                report(f"{done} of {len(cases)}: {future.result()}; about {left:.0f} min left")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in {*active_children()} - before:  # after an interruption, a case without a result is repeated
                process.terminate()
