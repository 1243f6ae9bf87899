"""Settings of the optimizer, and patterns of names of parameters."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from hypergrit_common.config import check_positive, check_range
from hypergrit_common.errors import UserError

ADAMW: Final = "adamw"


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and its learning rate schedule. The defaults are HyCoCLIP's; MERU's differ in the number of steps.

    `decay` selects the parameters with weight decay. "paper": all except gains, biases and learned scalars (MERU, section
    4.1; PoinCLIP, section 5). "all_but_scalars": all except learned scalars (HyCoCLIP, appendix B; PHyCLIP, appendix
    C.3), that is the temperature, and the curvatures and alphas of all factors. "released": all except the four scalars
    of MERU, because the authors' code ignores the weight decay of 0 that it sets for gains and biases. PHyCLIP's
    curvatures and alphas, which are vectors, decay too.
    """

    # optimizer: adamw, or one of timm by its name, such as muon (matrices; AdamW for all else), lion or adopt
    name: str = ADAMW
    # more arguments of the optimizer, such as {momentum: 0.9}; beta1, beta2 and eps are those of adamw alone
    kwargs: dict[str, Any] = field(default_factory=dict)
    # peak learning rate, reached after the warm-up
    lr: float = 5e-4
    # learning rates of parts of the model, as multiples of lr: {visual: 0.1, 'textual.resblocks.[0-5]': 0.5}. A key is
    # the name of a parameter or of a module, with *, ? and [...] as in the shell; the longest that matches counts
    lr_ratios: dict[str, float] = field(default_factory=dict)
    # steps before which parts of the model keep their weights: {'visual.blocks.[0-7]': 1000, textual.token_embed: null};
    # null: never trained. Keys as in lr_ratios
    frozen_until: dict[str, int | None] = field(default_factory=dict)
    # AdamW's decay rate of the mean gradient, 0 to below 1
    beta1: float = 0.9
    # AdamW's decay rate of the mean squared gradient, 0 to below 1
    beta2: float = 0.98
    # AdamW's term added to the denominator
    eps: float = 1e-8
    # AdamW's decoupled weight decay: each step multiplies a weight by 1 - learning rate * weight_decay
    weight_decay: float = 0.2
    # parameters with weight decay: paper, only matrices, the rule of MERU and PoinCLIP; all_but_scalars, gains and biases
    # too, the rule of HyCoCLIP and PHyCLIP; released, all that decay in the authors' code
    decay: Literal["paper", "all_but_scalars", "released"] = "paper"
    # maximum norm of the gradient of all parameters; larger gradients are scaled down to it; null: no limit
    max_gradient_norm: float | None = None
    # steps in which the learning rate rises linearly from 0 to lr
    warmup_steps: int = 4000
    # decay per step of the exponential moving average of the weights, 0 to below 1, such as 0.9999; evaluations and the
    # saved model use this average; null: none
    ema: float | None = None
    # optimizer steps of the run
    steps: int = 500_000
    # learning rate after the warm-up. cosine: half a cosine over all further steps; constant: lr; wsd: lr, then a linear
    # decay in the last decay_steps steps
    schedule: Literal["cosine", "constant", "wsd"] = "cosine"
    # with schedule=wsd, the number of steps of the decay
    decay_steps: int = 50_000
    # learning rate at the end of the run, as a multiple of lr; without effect with schedule=constant
    final_lr_ratio: float = 0.0

    def __post_init__(self) -> None:
        check_range(self, "lr", "eps", "weight_decay", "warmup_steps", least=0, below=math.inf)
        check_range(self, "steps", "decay_steps", least=1)
        check_range(self, "final_lr_ratio", least=0, most=1)
        check_range(self, "beta1", "beta2", "ema", least=0, below=1)
        check_positive(self, "max_gradient_norm")
        if self.warmup_steps >= self.steps:
            raise UserError(
                f"warmup_steps is {self.warmup_steps} and steps is {self.steps}, so the learning rate never reaches lr; "
                "give fewer optim.warmup_steps"
            )
        for name in ("lr_ratios", "frozen_until"):
            for pattern, value in getattr(self, name).items():
                if value is not None and not 0 <= value < math.inf:
                    raise UserError(f"{name}.{pattern} is {value}; give 0 or more")
        if self.schedule == "wsd" and self.warmup_steps + self.decay_steps > self.steps:
            raise UserError(
                f"decay_steps is {self.decay_steps}, more than the {self.steps - self.warmup_steps} steps after the "
                "warm-up; give fewer"
            )


@dataclass(frozen=True, kw_only=True)
class LoRAConfig:
    """Low-rank updates of matrices, which stay frozen themselves."""

    # ranks of the updates: {'visual.blocks.*.attn': 8, textual.resblocks: 4}. A key is the name of a matrix or of a module,
    # with *, ? and [...] as in the shell; the longest that matches counts, and 0 leaves a matrix out. Empty: no LoRA
    ranks: dict[str, int] = field(default_factory=dict)
    # scale of the updates: their product is multiplied by alpha / rank
    alpha: float = 16.0
    # multiply it by alpha / sqrt(rank) instead, which does not shrink the updates of high ranks (rsLoRA)
    rank_stabilised: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "alpha")
        for pattern, rank in self.ranks.items():
            if rank < 0:
                raise UserError(f"ranks.{pattern} is {rank}; give 0 or more")


# Patterns that select parameters of a model by name.


def matches(pattern: str, name: str) -> bool:
    """True if `pattern` is the name of a parameter or of a module around it.

    A pattern may contain `*`, `?` and `[...]`, as in the shell: `visual.blocks.[0-5]`, `*.bias`, `textual`.
    """
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(len(parts), 0, -1))


def longest_match(patterns: Iterable[str], name: str) -> str | None:
    """The longest of the patterns that match a parameter, the first in alphabetical order among several; else None."""
    return min((item for item in patterns if matches(item, name)), key=lambda item: (-len(item), item), default=None)


def check_matched(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Raise ValueError for a pattern that matches no parameter, with the names of the parts of the model."""
    found = list(names)
    unknown = [pattern for pattern in patterns if not any(matches(pattern, name) for name in found)]
    if unknown:
        parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in found))
        raise ValueError(f"{unknown[0]!r} matches no parameter; the parts of the model are {parts}")
