"""Work that rank 0 does alone, however long it takes, while the other ranks wait."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Final, TypeVar

import torch
import torch.distributed as dist

from common.errors import UserError
from trainer.distributed.gather import all_ranks, rank, world_size

BEAT_S: Final = 5.0
"""Seconds between signs of life of rank 0: the others wait for each with the time limit of the group."""
BUSY, DONE = 0, 1
T = TypeVar("T")


def on_rank_0(work: Callable[[], T]) -> T | None:
    """Return `work()` on rank 0, and None on the others, which wait for it. `work` uses no collectives. Collective.

    Raises UserError on all ranks if `work` raises it.
    """
    if world_size() == 1:
        return work()
    result, problem = None, ""
    if rank() == 0:
        try:
            with signs_of_life():
                result = work()
        except UserError as error:
            problem = str(error)
        exchange(DONE)
    else:
        while exchange(BUSY) == BUSY:
            pass
    if problem := all_ranks(problem)[0]:
        raise UserError(problem)
    return result


@contextmanager
def signs_of_life() -> Iterator[None]:
    """Tell the waiting ranks every few seconds, from a thread, that this one is at work."""
    is_done = Event()

    def beat() -> None:
        while not is_done.wait(BEAT_S):
            exchange(BUSY)

    with ThreadPoolExecutor(1) as thread:
        beats = thread.submit(beat)
        try:
            yield
        finally:
            is_done.set()
    beats.result()  # raises if another rank is lost


def exchange(state: int) -> int:
    """Return the state of rank 0; the others pass BUSY. Collective, on the host."""
    value = torch.tensor(state)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value.item())
