"""AdamW as the papers have it: which parameters decay, and how the learning rate moves."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Defaults are MERU's, which HyCoCLIP and PHyCLIP keep.

    `decay` says what weight decay touches. "paper": all but gains, biases and learned scalars. "released": all but the
    four scalars of MERU, since its code takes a gain's decay of 0 for unset; PHyCLIP's curvatures and alphas decay too.
    """

    lr: float = 5e-4
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.2
    decay: Literal["paper", "released"] = "paper"
    warmup_steps: int = 4000
    steps: int = 120_000


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
    groups = parameter_groups(model, config)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)


def learning_rate(step: int, config: OptimConfig) -> float:
    """Of step 0, 1, ...: linear from 0, then half a cosine to 0. The first step's rate is 0, as released."""
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
    return config.lr * math.cos(math.pi / 2 * min(progress, 1.0)) ** 2
