"""The learning rate schedule and the parameter groups of every training loop."""

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor


def warmup_cosine(step: int, *, steps: int, warmup_steps: int, final_ratio: float, first_step: int = 0) -> float:
    """Return the learning rate at `step` (from 0) as a fraction of its peak: linear warm-up, then cosine decay.

    The warm-up starts at 0 if `first_step` is 0, as in MERU's released code, and at 1 / warmup_steps if it is 1. The
    cosine spans the steps from the end of the warm-up to `steps` and ends at `final_ratio`.
    """
    warmup = (step + first_step) / warmup_steps if step < warmup_steps else 1.0
    progress = min(max((step - warmup_steps) / max(steps - warmup_steps, 1), 0.0), 1.0)
    return min(warmup, final_ratio + (1 - final_ratio) * math.cos(math.pi / 2 * progress) ** 2)


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """True for parameters with two or more dimensions, which excludes gains, biases and scalars."""
    return parameter.ndim > 1


def first_prefix(prefixes: Iterable[str], name: str) -> str | None:
    """The first of the prefixes with which a name begins, or None."""
    return next((prefix for prefix in prefixes if name.startswith(prefix)), None)


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    decays: Callable[[str, nn.Parameter], bool] = is_matrix,
    lr_ratios: Mapping[str, float] = MappingProxyType({}),
    match: Callable[[Iterable[str], str], str | None] = first_prefix,
) -> list[dict[str, Any]]:
    """Divide the trainable parameters of a model into groups for an optimizer, ordered by their first parameter.

    `decays(name, parameter)` selects the parameters with weight decay; `lr_ratios` maps a pattern, which
    `match` selects for a name, to a learning rate as a multiple of `lr`. Sharded (DTensor) and ordinary parameters are
    in separate groups because fused AdamW cannot mix them. `initial_lr` of a group is its peak learning rate, which a
    schedule multiplies by its fraction, and `lr_ratio` is this rate as a multiple of `lr`.
    """
    members: dict[tuple[bool, str | None, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (decays(name, parameter), match(lr_ratios, name), isinstance(parameter, DTensor))
            members.setdefault(key, []).append(parameter)
    groups = []
    for (has_decay, pattern, _), parameters in members.items():
        ratio = 1.0 if pattern is None else lr_ratios[pattern]
        rates = {"lr": lr * ratio, "initial_lr": lr * ratio, "lr_ratio": ratio}
        groups.append({"params": parameters, "weight_decay": weight_decay * has_decay, **rates})
    return groups
