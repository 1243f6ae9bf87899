"""The optimizer of a run, its learning rate and the moving average of the weights."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from hypergrit_common.errors import UserError
from trainer.models.dual_encoder import DualEncoder
from trainer.optim.config import ADAMW, OptimConfig, longest_match

MERU_SCALARS = ("curv", "visual_alpha", "textual_alpha")
"""Names of the learned scalars of MERU beside its temperature."""


def build_optimizer(model: DualEncoder, config: OptimConfig) -> torch.optim.Optimizer:
    """Build the optimizer with the parameter groups of `config.decay` and `config.lr_ratios`: a fused AdamW, or one of timm.

    The fused kernel makes one pass over the memory of each parameter: three to five times as fast, on CPUs too. Raises
    UserError for an optimizer that timm lacks, or that a checkpoint cannot hold.
    """
    scalars = {*model.temperatures, *MERU_SCALARS, "logit_bias"}

    def decays(name: str, parameter: nn.Parameter) -> bool:
        match config.decay:
            case "paper":
                return parameter.ndim > 1
            case "all_but_scalars":
                return name not in scalars and parameter.ndim > 0
            case "released":
                return name not in scalars or parameter.ndim > 0

    groups = parameter_groups(model, config, decays)
    if config.name == ADAMW:
        betas = (config.beta1, config.beta2)
        return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True, **config.kwargs)
    timm_optimizer = partial(create_optimizer_v2, opt=config.name, lr=config.lr, weight_decay=config.weight_decay)
    check_state(partial(timm_optimizer, **config.kwargs), config)
    return timm_optimizer(groups, **config.kwargs)


def parameter_groups(
    model: nn.Module, config: OptimConfig, decays: Callable[[str, nn.Parameter], bool]
) -> list[dict[str, Any]]:
    """Divide the trainable parameters of a model into groups for an optimizer, ordered by their first parameter.

    `decays(name, parameter)` selects the parameters with weight decay. Sharded (DTensor) and ordinary parameters are in
    separate groups because fused AdamW cannot mix them. `initial_lr` of a group is its peak learning rate, which a
    schedule multiplies by its fraction, and `lr_ratio` is this rate as a multiple of `config.lr`.
    """
    members: dict[tuple[bool, str | None, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (decays(name, parameter), longest_match(config.lr_ratios, name), isinstance(parameter, DTensor))
            members.setdefault(key, []).append(parameter)
    groups = []
    for (has_decay, pattern, _), parameters in members.items():
        ratio = 1.0 if pattern is None else config.lr_ratios[pattern]
        rates = {"lr": config.lr * ratio, "initial_lr": config.lr * ratio, "lr_ratio": ratio}
        groups.append({"params": parameters, "weight_decay": config.weight_decay * has_decay, **rates})
    return groups


def check_state(create: Callable[..., torch.optim.Optimizer], config: OptimConfig) -> None:
    """Step a small optimizer. Raises UserError if it does not work, or if its state is more than numbers and tensors."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (2,))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    try:
        optimizer = create(parameters)
        before = [{**group} for group in optimizer.param_groups]
        optimizer.step()
    except (ValueError, TypeError, AssertionError, RuntimeError) as error:
        raise UserError(f"optim.name={config.name} with optim.kwargs={config.kwargs} does not work: {error}") from error
    state = [value for values in optimizer.state.values() for value in values.values()]
    if optimizer.param_groups != before or not all(isinstance(value, Tensor | int) for value in state):
        raise UserError(f"optim.name={config.name} keeps a state that checkpoints cannot hold; take muon or lion")


# The learning rate of each step.


def learning_rate(step: int, config: OptimConfig) -> float:
    """The learning rate of step 0, 1, ...: a linear warm-up from 0, then `config.schedule`.

    "cosine" is half a cosine (MERU, section 4.1; the papers' models). "wsd" is constant until the last `decay_steps`
    steps, in which the rate falls linearly (Hu et al. 2024, arXiv 2404.06395, section 4; the linear form is that of
    Hägele et al. 2024, arXiv 2405.18392). Both end at `final_lr_ratio`.
    """
    final, steps, warmup = config.final_lr_ratio, config.steps, config.warmup_steps
    match config.schedule:
        case "cosine":
            progress = min(max((step - warmup) / max(steps - warmup, 1), 0.0), 1.0)
            ratio = min(rise(step, warmup), final + (1 - final) * math.cos(math.pi / 2 * progress) ** 2)
        case "constant":
            ratio = rise(step, warmup)
        case "wsd":
            left = min((steps - step) / config.decay_steps, 1.0)
            ratio = min(rise(step, warmup), final + (1 - final) * left)
    return config.lr * ratio


def rise(step: int, warmup_steps: int) -> float:
    """The linear warm-up from 0 to 1."""
    return step / warmup_steps if step < warmup_steps else 1.0


# The exponential moving average of a model's weights (Polyak averaging).


class Average:
    """The average of the trainable parameters of a model; without a `decay`, nothing.

    The decay of a step rises from 0.1 to `decay`, so that the initial weights are soon forgotten. `values` are the
    averages by name; of a sharded parameter, each rank has its shard. The buffers of the average are those of the
    model.
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
