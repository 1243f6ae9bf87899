"""The rank, the number of ranks, and an all-gather with gradients.

Models and losses use torch.distributed through this module only.

Shapes: b rows on this rank, n rows on all ranks, d width of a row.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hypergrit_common.errors import UserError

T = TypeVar("T")


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The rank of this process; 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


class Gather(torch.autograd.Function):
    """All-gather of rows in rank order. The backward pass sums the gradients of all ranks for each row."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        padded = F.pad(features, (0, 0, 0, max(counts) - len(features))).contiguous()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total.split(ctx.counts)[rank()], None


def gather(features: Tensor, counts: list[int] | None = None) -> Tensor:
    """Gather rows [b d] of every rank into [n d], in rank order, with gradients to every rank. Collective.

    Rows in half precision are gathered in float32, and so are their gradients.

    `counts` is the number of rows on each rank; without it, every rank must have the same number. A loss over the
    gathered rows, with gradients averaged over the ranks, has the gradient that a single process computes for the full
    batch.
    """
    if world_size() == 1:
        return features
    if features.dtype in (torch.float16, torch.bfloat16):
        features = features.float()  # the sum over the ranks of the gradients would lose digits
    gathered: Tensor = Gather.apply(features, counts or [len(features)] * world_size())
    return gathered


def counts_of_ranks(n: int) -> list[int]:
    """Return the `n` of every rank, in rank order. Collective, on the host: it does not wait for a GPU."""
    if world_size() == 1:
        return [n]
    counts = torch.zeros(world_size(), dtype=torch.int64)
    counts[rank()] = n
    dist.all_reduce(counts)
    return [int(count) for count in counts.tolist()]


def all_ranks(value: T) -> list[T]:
    """Return the value of every rank, in rank order. Collective; values are pickled."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


# Work that rank 0 does alone, however long it takes, while the other ranks wait.

BEAT_S: Final = 5.0
"""Seconds between signs of life of rank 0: the others wait for each with the time limit of the group."""
BUSY, DONE = 0, 1


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
