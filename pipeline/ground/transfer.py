"""Tensors between the CPU and a GPU that go on working meanwhile."""

from collections.abc import Iterable

import torch
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` in memory that `device` can read by itself, if it is a GPU."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


class OnCpu:
    """Copies of tensors on the CPU. On a GPU they are under way until `wait`, and it is not held up by them."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self.copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # non_blocking: to pinned memory
        self.event = None
        if any(tensor.is_cuda for tensor in tensors):
            self.event = torch.cuda.Event()
            self.event.record()

    def wait(self) -> list[Tensor]:
        """The copies, complete."""
        if self.event is not None:
            self.event.synchronize()
        return self.copies
