"""Low-rank adaptation (LoRA): trained updates of low rank for frozen matrices (Hu et al. 2021, arXiv 2106.09685).

A matrix W [n m] of a tower becomes W + (alpha / r) B A, with B [n r] and A [r m] (section 4.1). A fused projection to
queries, keys and values has an update of its own for each of the three. W stays in the state dict as
`parametrizations.NAME.original`; saved models hold the sum, and are models without LoRA.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from common.errors import UserError
from trainer.names import check_matched, longest_match
from trainer.optim.config import LoRAConfig

FUSED: Final = {"qkv": 3, "in_proj_weight": 3}
"""Number of projections in a matrix, by the last part of the name of its module or its own name."""
INSERTED: Final = ".parametrizations."
"""Part of the names of a parametrized matrix: MODULE.parametrizations.NAME.original."""
ORIGINAL: Final = ".original"


class LowRank(nn.Module):
    """The update of a matrix [n m], in `n_parts` blocks of rows. It is zero at first, as A is random and B is zero."""

    def __init__(self, weight: Tensor, rank: int, alpha: float, n_parts: int) -> None:
        super().__init__()
        n, m = weight.shape
        self.scale = alpha / rank
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
        update = LowRank(weight, config.ranks[pattern], config.alpha, n_parts)
        parametrize.register_parametrization(model.get_submodule(owner), own, update)
        weight.requires_grad_(False)


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
