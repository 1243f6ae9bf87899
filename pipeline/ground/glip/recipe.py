"""How GLIP is trained: the figures of a run, its rates and its optimizer, and the averages of weights over steps and processes."""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from common.errors import UserError
from common.load import check_positive, check_range
from pipeline.ground.glip.model import Glip


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The defaults are the miniature's; fine-tuning a released model wants `lr=1e-4`, `language_lr_ratio=0.1`."""

    steps: int = 2500  # optimizer steps of the whole run; more than warmup_steps
    batch_size: int = 16  # images that each process sees in one step
    lr: float = 2e-3  # highest learning rate of AdamW, reached after the warm-up
    language_lr_ratio: float = 1.0  # learning rate of the language tower, as a multiple of lr
    # learning rate of the last step, as a multiple of lr; after the warm-up it falls there along a cosine
    final_lr_ratio: float = 0.01
    warmup_steps: int = 100  # steps in which the learning rate rises linearly from 0 to lr
    weight_decay: float = 1e-4  # AdamW's weight decay of matrices; biases and gains have none
    # largest norm of the gradient of all weights; a larger gradient is scaled down to it
    max_gradient_norm: float = 5.0
    ema: float = 0.992  # decay per step, 0 to below 1, of the running average of the weights, which becomes the model
    # steps after which weights and AdamW's moments are averaged over the processes; checkpoints are taken there only
    average_every: int = 6
    log_every: int = 20  # steps between two lines of the log and of metrics.jsonl
    checkpoint_s: float = 180.0  # shortest time between two checkpoints, in seconds

    def __post_init__(self) -> None:
        check_positive(self, "batch_size", "lr", "max_gradient_norm", "average_every", "log_every")
        ratios = ("language_lr_ratio", "final_lr_ratio")
        check_range(self, *ratios, "warmup_steps", "weight_decay", "checkpoint_s", least=0)
        check_range(self, "ema", least=0, below=1)
        if self.steps <= self.warmup_steps:
            raise UserError(f"steps is {self.steps}; give more than warmup_steps, {self.warmup_steps}")


def learning_rate(step: int, config: TrainConfig) -> float:
    """Factor of the base rate: linear warm-up, then a cosine."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    cosine = (1 + math.cos(math.pi * min(progress, 1.0))) / 2
    return config.final_lr_ratio + (1 - config.final_lr_ratio) * cosine


def make_optimizer(model: Glip, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; matrices decay, vectors do not; the language tower has its own rate."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault((parameter.ndim > 1, name.startswith("language_backbone")), []).append(parameter)
    parts = [
        {
            "params": parameters,
            "weight_decay": config.weight_decay * is_matrix,
            "lr": config.lr * (config.language_lr_ratio if is_language else 1.0),
        }
        for (is_matrix, is_language), parameters in groups.items()
    ]
    for part in parts:
        part["initial_lr"] = part["lr"]
    return torch.optim.AdamW(parts, fused=True)


class Averaged:
    """Exponential average of a model's floating state; early on the horizon grows with the steps."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {key: value.detach().clone() for key, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        pairs = [(self.state[key], value) for key, value in model.state_dict().items() if value.is_floating_point()]
        torch._foreach_lerp_([old for old, _ in pairs], [new for _, new in pairs], 1 - decay)


@torch.no_grad()
def average_processes(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the weights, and the moments that AdamW keeps of them, by their means over all processes."""
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
