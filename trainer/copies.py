"""Copies of batches to the device, on a CUDA stream of their own."""

from contextlib import nullcontext
from typing import Any

import torch

from trainer.batch import Batch
from trainer.data.loader import Loader


class BatchCopies:
    """The batches of a loader, on the device of this process.

    Call `start` once a step has been queued: the next batch is then read and copied while the device computes.
    `state` is the loader's state after the batch that `take` has returned; the loader itself is one batch ahead.
    """

    def __init__(self, loader: Loader, device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.batches = iter(loader)
        self.state = loader.state_dict()
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.next: tuple[Batch, dict[str, Any]] | None = None

    def start(self) -> None:
        """Read the next batch, and queue its copy to the device."""
        batch = next(self.batches)
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            self.next = batch.to(self.device, non_blocking=True), self.loader.state_dict()

    def take(self) -> Batch:
        """Return the next batch. Operations that are queued after this call wait for its copy on the device."""
        if self.next is None:
            self.start()
        assert self.next is not None
        (batch, self.state), self.next = self.next, None
        if self.stream is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_stream(self.stream)
            batch.record_stream(stream)  # the next copy does not reuse its memory before the step has ended
        return batch
