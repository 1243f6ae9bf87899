"""Average the weights: over steps, for the saved model, and over processes."""

import torch
import torch.distributed as dist
from torch import nn


class Averaged:
    """Exponential moving average of a model's floating-point state. The decay per step rises from 0.1 to `decay`."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {key: value.detach().clone() for key, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Update the average with the weights after `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        pairs = [(self.state[key], value) for key, value in model.state_dict().items() if value.is_floating_point()]
        torch._foreach_lerp_([old for old, _ in pairs], [new for _, new in pairs], 1 - decay)


@torch.no_grad()
def average_processes(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the weights and AdamW's moments by their means over all processes. Collective.

    Does nothing without torch.distributed.
    """
    if not dist.is_initialized():
        return
    tensors = [value for value in model.state_dict().values() if value.is_floating_point()]
    for parameter in model.parameters():
        moments = optimizer.state.get(parameter, {})
        tensors += [moments[key] for key in ("exp_avg", "exp_avg_sq") if key in moments]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
