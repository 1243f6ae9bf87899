"""AdamW as the papers have it: which parameters decay, and how the learning rate moves."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from common.load import check_range


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Defaults are MERU's, which HyCoCLIP and PHyCLIP keep.

    `decay` says what weight decay touches. "paper": all but gains, biases and learned scalars. "released": all but the
    four scalars of MERU, since its code takes a gain's decay of 0 for unset; PHyCLIP's curvatures and alphas decay too.
    """

    lr: float = 5e-4  # highest learning rate, reached after the warm-up
    beta1: float = 0.9  # AdamW's decay per step of the mean of gradients, 0 to below 1
    beta2: float = 0.98  # AdamW's decay per step of the mean of squared gradients, 0 to below 1
    eps: float = 1e-8  # what AdamW adds to the root of the mean square before it divides by it
    weight_decay: float = 0.2  # AdamW's decoupled weight decay: a step shrinks a weight by this times the learning rate
    # which weights decay: paper, the matrices alone; released, all that decay in the authors' code
    decay: Literal["paper", "released"] = "paper"
    warmup_steps: int = 4000  # steps in which the learning rate rises linearly from 0 to lr
    steps: int = 120_000  # optimizer steps of the whole run; the learning rate ends at 0

    def __post_init__(self) -> None:
        check_range(self, "lr", "eps", "weight_decay", "warmup_steps", least=0, below=math.inf)
        check_range(self, "steps", least=1)
        check_range(self, "beta1", "beta2", least=0, below=1)


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Two groups, with and without weight decay."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        match config.decay:
            case "paper":
                decays = parameter.ndim > 1
            case "released":
                scalar = name in ("logit_scale", "curv", "visual_alpha", "textual_alpha")
                decays = not scalar or parameter.ndim > 0
        (decayed if decays else kept).append(parameter)
    return [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    # Parameters in shares (FSDP) and whole ones cannot be updated together.
    groups = [
        {**group, "params": part}
        for group in parameter_groups(model, config)
        for part in by_type(group["params"])
        if part
    ]
    # Fused: one pass over the memory of each parameter, on a CPU three to five times faster too.
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def by_type(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """In shares, and whole."""
    return [[p for p in parameters if isinstance(p, DTensor) == shared] for shared in (True, False)]


def learning_rate(step: int, config: OptimConfig) -> float:
    """Of step 0, 1, ...: linear from 0, then half a cosine to 0. The first step's rate is 0, as released."""
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
    return config.lr * math.cos(math.pi / 2 * min(progress, 1.0)) ** 2
