"""Ranks and what they exchange. The only file that asks for the rank."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


class Gather(torch.autograd.Function):
    """All ranks' rows in the order of the ranks; back, every rank's row gets the sum of what all ranks say of it."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        features = features.contiguous()
        parts = [torch.empty_like(features) for _ in range(world_size())]
        dist.all_gather(parts, features)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(world_size())[rank()]


def gather(features: Tensor) -> Tensor:
    """[b d] of every rank as [n d], in the order of the ranks, with gradients to each of them.

    Every rank must hold the same number of rows. With gradients through it, and averaged over the ranks, a loss over
    the gathered rows has the gradient that one process would find on the whole batch.
    """
    if world_size() == 1:
        return features
    gathered: Tensor = Gather.apply(features)
    return gathered
