"""Asynchronous copies between CPU and GPU."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to pinned memory for an asynchronous copy to a GPU; return it unchanged if `device` is a CPU."""
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
    """Asynchronous copies of tensors on the CPU; call `wait` before use."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self.copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # into pinned memory
        self.event = None
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is not None:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(device))  # not of the current device, which may be another GPU

    def wait(self) -> list[Tensor]:
        """Return the copies once they are complete."""
        if self.event is not None:
            self.event.synchronize()
        return self.copies
