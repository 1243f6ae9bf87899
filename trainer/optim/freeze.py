"""Parts of a model that are trained only from a step on, never, or by updates of low rank."""

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hypergrit_common.errors import UserError
from trainer.models.dual_encoder import DualEncoder
from trainer.optim.config import LoRAConfig, OptimConfig, check_matched, longest_match

# Low-rank adaptation (LoRA): trained updates of low rank for frozen matrices (Hu et al. 2021, arXiv 2106.09685).
#
# A matrix W [n m] of a tower becomes W + (alpha / r) B A, with B [n r] and A [r m] (section 4.1). A fused projection to
# queries, keys and values has an update of its own for each of the three. rsLoRA divides by the root of r (Kalajdzievski
# 2023, arXiv 2312.03732). W stays in the state dict as `parametrizations.NAME.original`; saved models hold the sum, and
# are models without LoRA.

FUSED: Final = {"qkv": 3, "in_proj_weight": 3}
"""Number of projections in a matrix, by the last part of the name of its module or its own name."""
INSERTED: Final = ".parametrizations."
"""Part of the names of a parametrized matrix: MODULE.parametrizations.NAME.original."""
ORIGINAL: Final = ".original"


class LowRank(nn.Module):
    """The update of a matrix [n m], in `n_parts` blocks of rows. It is zero at first, as A is random and B is zero."""

    def __init__(self, weight: Tensor, rank: int, scale: float, n_parts: int) -> None:
        super().__init__()
        n, m = weight.shape
        self.scale = scale
        self.down = nn.Parameter(weight.new_empty(n_parts, rank, m))
        self.up = nn.Parameter(weight.new_zeros(n_parts, n // n_parts, rank))
        nn.init.normal_(self.down, std=m**-0.5)

    def forward(self, weight: Tensor) -> Tensor:
        """The matrix [n m] with its update."""
        return weight + self.scale * (self.up @ self.down).flatten(0, 1)


def add_lora(model: nn.Module, config: LoRAConfig) -> None:
    """Freeze the matrices that `config.ranks` selects and give them updates.

    Raises UserError for a pattern that matches no matrix.
    """
    matrices = {name: value for name, value in model.named_parameters() if value.ndim == 2}
    try:
        check_matched(config.ranks, matrices)
    except ValueError as error:
        raise UserError(f"lora.ranks: {error}, or none with two dimensions") from None
    for name, weight in matrices.items():
        pattern = longest_match(config.ranks, name)
        if pattern is None or not config.ranks[pattern]:
            continue
        owner, _, own = name.rpartition(".")
        n_parts = FUSED.get(own) or FUSED.get(owner.rpartition(".")[2], 1)
        update = LowRank(weight, rank := config.ranks[pattern], scale_of(config, rank), n_parts)
        parametrize.register_parametrization(model.get_submodule(owner), own, update)
        weight.requires_grad_(False)


def scale_of(config: LoRAConfig, rank: int) -> float:
    """The factor of an update of this rank."""
    return config.alpha / (rank**0.5 if config.rank_stabilised else rank)


def is_update(name: str) -> bool:
    """True for the parameters of an update."""
    return INSERTED in name and not name.endswith(ORIGINAL)


def merged_state(model: nn.Module) -> Mapping[str, Tensor]:
    """The state dict of a model with its updates added to their matrices, as of a model without LoRA."""
    state: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if INSERTED not in name:
                state[name] = value
            elif name.endswith(ORIGINAL):
                owner, _, own = name.removesuffix(ORIGINAL).rpartition(INSERTED)
                state[f"{owner}.{own}"] = getattr(model.get_submodule(owner), own)
    return state


def merged_tensors(state: Mapping[str, Tensor], config: LoRAConfig) -> dict[str, Tensor]:
    """The `merged_state` of a model with these tensors. Raises ValueError for updates that do not fit their matrices."""
    merged = {name: value for name, value in state.items() if INSERTED not in name}
    for name in [name for name in state if INSERTED in name and name.endswith(ORIGINAL)]:
        start, weight = name.removesuffix(ORIGINAL), state[name]
        up, down = (state.get(f"{start}.0.{part}", torch.zeros(0)) for part in ("up", "down"))
        sizes = (*up.shape[:2], *down.shape[2:])
        if up.ndim != 3 or up.shape[::2] != down.shape[:2] or (sizes[0] * sizes[1], *sizes[2:]) != weight.shape:
            raise ValueError(f"the update of {name:.200} is missing, or does not fit it")
        owner, _, own = start.rpartition(INSERTED)
        merged[f"{owner}.{own}"] = weight + scale_of(config, len(down[0])) * (up @ down).flatten(0, 1)
    return merged


def first_steps(model: nn.Module, config: OptimConfig) -> dict[str, float]:
    """The step before which parameters keep their values, by name: those that a pattern of `frozen_until` matches.

    It is infinite for those that are never trained. Updates of LoRA are trained all the same.
    """
    found = {}
    for name, _ in model.named_parameters():
        pattern = None if is_update(name) else longest_match(config.frozen_until, name)
        if pattern is not None:
            step = config.frozen_until[pattern]
            found[name] = math.inf if step is None else float(step)
    return found


def check_patterns(model: DualEncoder, config: OptimConfig) -> None:
    """Raise UserError for a pattern that matches no parameter, or if the first step would train nothing."""
    names = [name for name, _ in model.named_parameters()]
    for key in ("lr_ratios", "frozen_until"):
        try:
            check_matched(getattr(config, key), names)
        except ValueError as error:
            raise UserError(f"optim.{key}: {error}") from None
    steps = first_steps(model, config)
    if all(steps.get(name, 0) > 0 for name, parameter in model.named_parameters() if parameter.requires_grad):
        raise UserError("optim.frozen_until freezes all parameters in the first step; leave one of them out")


def freeze_for_good(model: DualEncoder, config: OptimConfig) -> None:
    """Exclude the parameters from training that `frozen_until` never trains. Before the optimizer is built."""
    for name, step in first_steps(model, config).items():
        if step == math.inf:
            model.get_parameter(name).requires_grad_(False)


class Freezing:
    """The parameters of `model` that are trained from a step on.

    Their gradients are computed and exchanged from the beginning, since DDP and FSDP are told once which parameters
    have one, and discarded before that step. Without a gradient, AdamW neither moves nor decays a weight. Modules whose
    parameters are all frozen are in evaluation mode: no dropout, no updates of batch norms.
    """

    def __init__(self, model: DualEncoder, config: OptimConfig) -> None:
        steps = first_steps(model, config)
        self.model = model
        self.parameters = [(model.get_parameter(name), step) for name, step in steps.items()]
        self.modules = [
            (module, max(steps[name] for name in names))
            for prefix, module in model.named_modules()
            if (names := [f"{prefix}.{name}".lstrip(".") for name, _ in module.named_parameters()])
            and all(name in steps for name in names)
        ]

    def set_modes(self, step: int) -> None:
        """Set the training mode of all modules for step number `step`, from 0."""
        if self.modules:
            self.model.train()
        for module, first in self.modules:
            if step < first:
                module.eval()

    def drop_gradients(self, step: int) -> None:
        """Remove the gradients of the parameters that step number `step`, from 0, does not train."""
        for parameter, first in self.parameters:
            if step < first:
                parameter.grad = None
