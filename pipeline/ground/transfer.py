"""Asynchronous copies between CPU and GPU."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return `tensor` in pinned memory, from which a GPU copies asynchronously; unchanged if `device` is not a GPU."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def take(tensors: Sequence[Tensor], rows: list[int]) -> list[Tensor]:
    """Return the given rows of each tensor of a batch.

    Indexing with a Python list would copy the list to the GPU synchronously; this copies it from pinned memory.
    """
    n, device = len(tensors[0]), tensors[0].device
    if rows == list(range(n)):
        return list(tensors)
    index = pinned(torch.tensor(rows), device).to(device, non_blocking=True)
    return [tensor.index_select(0, index) for tensor in tensors]


class OnCpu:
    """Copies of tensors on the CPU. The copies of GPU tensors are asynchronous and complete only after `wait`."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self.copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # non_blocking: to pinned memory
        self.event = None
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is not None:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(device))  # without a stream, it would record that of cuda:0

    def wait(self) -> list[Tensor]:
        """Return the copies once they are complete."""
        if self.event is not None:
            self.event.synchronize()
        return self.copies
