"""The exponential moving average of a model's weights (Polyak averaging)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """The average of the trainable parameters of a model; without a `decay`, nothing.

    The decay of a step rises from 0.1 to `decay`, so that the initial weights are soon forgotten. `values` are the
    averages by name; of a sharded parameter, each rank has its shard. The buffers of the average are those of the model.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self.decay = decay
        trained = model.named_parameters() if decay is not None else ()
        self.parameters = {name: value for name, value in trained if value.requires_grad}
        self.values = {name: value.detach().clone() for name, value in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step number `step`, from 0."""
        if self.decay is None:
            return
        add = get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))
        for is_sharded in (True, False):  # one operation cannot mix them
            names = [name for name, value in self.values.items() if isinstance(value, DTensor) == is_sharded]
            if names:
                add(
                    [self.values[name] for name in names], [self.parameters[name] for name in names], torch.tensor(step)
                )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside, and its own ones afterwards."""
        own = {name: self.parameters[name].detach().clone() for name in self.values}
        self._copy(self.values)
        try:
            yield
        finally:
            self._copy(own)

    @torch.no_grad()
    def _copy(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.parameters[name].copy_(value)
