"""Tensors between the CPU and a GPU that go on working meanwhile."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` in memory that `device` can read by itself, if it is a GPU."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def take(tensors: Sequence[Tensor], rows: list[int]) -> list[Tensor]:
    """These rows of each tensor of a batch. A list as index would be copied to a GPU from memory that it has to wait for."""
    n, device = len(tensors[0]), tensors[0].device
    if rows == list(range(n)):
        return list(tensors)
    index = pinned(torch.tensor(rows), device).to(device, non_blocking=True)
    return [tensor.index_select(0, index) for tensor in tensors]


class OnCpu:
    """Copies of tensors on the CPU. On a GPU they are under way until `wait`, and it is not held up by them."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self.copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # non_blocking: to pinned memory
        self.event = None
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is not None:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(device))  # by itself it would ask for cuda:0's

    def wait(self) -> list[Tensor]:
        """The copies, complete."""
        if self.event is not None:
            self.event.synchronize()
        return self.copies
