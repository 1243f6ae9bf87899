"""Ranks and what they exchange. The only file that asks for the rank."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


class Gather(torch.autograd.Function):
    """All ranks' rows in the order of the ranks; back, every rank's row gets the sum of what all ranks say of it."""

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
    """[b d] of every rank as [n d], in the order of the ranks, with gradients to each of them.

    Every rank must hold the same number of rows, or `counts` say how many each holds. With gradients through it, and
    averaged over the ranks, a loss over the gathered rows has the gradient that one process would find on the whole
    batch.
    """
    if world_size() == 1:
        return features
    gathered: Tensor = Gather.apply(features, counts or [len(features)] * world_size())
    return gathered


def counts_of_ranks(n: int, device: torch.device) -> list[int]:
    """The n of every rank."""
    if world_size() == 1:
        return [n]
    counts = torch.zeros(world_size(), dtype=torch.int64, device=device)
    counts[rank()] = n
    dist.all_reduce(counts)
    return [int(count) for count in counts.tolist()]
