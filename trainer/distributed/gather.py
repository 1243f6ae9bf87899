"""The rank, the number of ranks, and an all-gather with gradients.

Models and losses use torch.distributed through this module only.

Shapes: b rows on this rank, n rows on all ranks, d width of a row.
"""

from collections.abc import Callable, Iterator, Sequence
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
    """All-gather of the rows of several streams in rank order, in one message. `counts` has those of each stream.

    The backward pass sums the gradients of all ranks for each row, also in one message.
    """

    @staticmethod
    def forward(ctx: Any, counts: list[list[int]], *streams: Tensor) -> tuple[Tensor, ...]:
        ctx.widths = [rows.shape[1] for rows in streams]
        sizes = [[n * width for n in part] for part, width in zip(counts, ctx.widths, strict=True)]
        by_rank = list(zip(*sizes, strict=True))  # numbers of each stream
        ctx.by_rank, longest = by_rank, max(map(sum, by_rank))
        own = torch.cat([rows.flatten() for rows in streams])
        everything = own.new_empty(len(by_rank) * longest)
        dist.all_gather_into_tensor(everything, F.pad(own, (0, longest - len(own))))
        parts = [part[: sum(n)].split(n) for part, n in zip(everything.split(longest), by_rank, strict=True)]
        joined = map(torch.cat, zip(*parts, strict=True))
        return tuple(numbers.view(-1, width) for numbers, width in zip(joined, ctx.widths, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        longest = max(map(sum, ctx.by_rank))
        of_streams = [
            item.flatten().split(n) for item, n in zip(gradients, zip(*ctx.by_rank, strict=True), strict=True)
        ]
        by_rank = [torch.cat(parts) for parts in zip(*of_streams, strict=True)]
        own = by_rank[0].new_empty(longest)
        dist.reduce_scatter_tensor(own, torch.cat([F.pad(part, (0, longest - len(part))) for part in by_rank]))
        sizes = ctx.by_rank[rank()]
        found = own[: sum(sizes)].split(sizes)
        return None, *(numbers.view(-1, width) for numbers, width in zip(found, ctx.widths, strict=True))


@torch.compiler.disable
def gather_streams(streams: Sequence[Tensor], counts: list[list[int]]) -> tuple[Tensor, ...]:
    """Gather rows [b d] of every rank into [n d], in rank order, with gradients to every rank. Collective.

    `counts` has the number of rows of each stream on each rank. Rows in half precision are gathered in float32, and so
    are their gradients; the bits of int64 travel as those of floats. A loss over the gathered rows, with gradients
    averaged over the ranks, has the gradient that a single process computes for the full batch.
    """
    # The sum over the ranks of gradients in half precision would lose digits.
    dtype = torch.float64 if any(rows.dtype == torch.float64 for rows in streams) else torch.float32
    wide = [rows.view(dtype) if rows.dtype == torch.int64 else rows.to(dtype) for rows in streams]
    gathered: tuple[Tensor, ...] = Gather.apply(counts, *wide)
    return tuple(
        found.detach().view(torch.int64) if rows.dtype == torch.int64 else found
        for rows, found in zip(streams, gathered, strict=True)
    )


def gather(features: Tensor, counts: list[int]) -> Tensor:
    """Gather the rows of one stream as `gather_streams` does. Collective."""
    return features if world_size() == 1 else gather_streams([features], [counts])[0]


@torch.compiler.disable
def counts_of_ranks(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Return each of the numbers on every rank, in rank order. Collective, on the host: it does not wait for a GPU."""
    if world_size() == 1 or not numbers:
        return [(n,) for n in numbers]
    counts = torch.zeros(len(numbers), world_size(), dtype=torch.int64)
    counts[:, rank()] = torch.tensor(numbers)
    dist.all_reduce(counts)
    return [tuple(map(int, row)) for row in counts.tolist()]


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
