"""Towers over cached features: a frozen tower, whose outputs may be stored, and a head that is trained.

`trainer.data.features` stores the outputs of the frozen tower. The head takes either stored outputs or, if a tower is
attached (trainer.checkpoints.towers), pixels and token ids. The frozen tower is no submodule: it is neither trained nor
saved, but named by path and hash.

Shapes: b rows, l tokens, f width of the frozen tower, w width of the head.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import torch
from torch import Tensor, nn

from trainer.encoders.config import TextConfig
from trainer.encoders.text import StateSource, TextTower, TokenStates

LEAST_STD: Final = 0.01
"""Smallest standard deviation of a feature, as a share of their mean: those that hardly vary are not amplified."""


class Frozen(Protocol):
    """The outputs of a frozen model (trainer.checkpoints.towers.FrozenModel)."""

    model: Any

    def image(self, pixels: Tensor) -> Tensor:
        """Features [b f] of normalised images [b 3 h w]."""
        ...

    def text(self, token_ids: Tensor, source: StateSource | None) -> Tensor | TokenStates:
        """Features [b f] of texts [b l]; with `source`, also the states of their tokens."""
        ...


def missing() -> NoReturn:
    """The frozen model of a head without one."""
    raise ValueError("this model is a head without its frozen tower; load it with trainer.load_model, or give features")


class Head(nn.Module):
    """Standardised features [... f] through hidden layers to [... w]: each is linear, GELU, LayerNorm.

    Without a hidden layer, only the projection of the model is trained on them, as in MERU's table 3.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, width: int, hidden: int = 512, depth: int = 1) -> None:
        super().__init__()
        if width < 1 or hidden < 1 or depth < 0:
            raise ValueError(f"a head of {depth} layers of width {hidden} over {width} features is not possible")
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
        widths = [width, *[hidden] * depth]
        layers = (nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.LayerNorm(b)) for a, b in pairwise(widths))
        self.layers = nn.Sequential(*layers)
        self.num_features = widths[-1]

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.layers((features.to(self.mean.dtype) - self.mean) / self.std)
        return found

    @torch.no_grad()
    def standardise(self, features: Tensor) -> None:
        """Let a sample of features [n f] have mean 0 and standard deviation 1."""
        found = features.double()
        std = found.std(0, correction=0)
        self.mean.copy_(found.mean(0))
        self.std.copy_(std.clamp(min=max(LEAST_STD * std.mean().item(), 1e-12)))


class CachedImage(nn.Module):
    """Features [b w] of images: of normalised pixels [b 3 h w], or of stored features [b f]."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.head = Head(**head_arguments(kwargs))
        self.num_features = self.head.num_features
        self.frozen: Callable[[], Frozen] = missing
        self.place: Callable[[], Path] = missing  # where the frozen model was found

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.head(images if images.ndim == 2 else self.frozen().image(images))
        return features


class CachedText(TextTower):
    """Features [b w] of texts: of token ids [b l], or of stored features [b f].

    Stored states of tokens are rows [b 1+2l f]: the feature of a text, its initial and its contextual states.
    """

    positions = ""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.head = Head(**head_arguments(config.kwargs))
        self.num_features = self.head.num_features
        self.context_length = config.context_length
        self.frozen: Callable[[], Frozen] = missing
        self.place: Callable[[], Path] = missing

    def forward(self, token_ids: Tensor, source: StateSource | None = None) -> Tensor | TokenStates:
        found = unpacked(token_ids) if token_ids.is_floating_point() else self.frozen().text(token_ids, source)
        if isinstance(found, Tensor):
            pooled: Tensor = self.head(found)
            return pooled
        if source is None:
            return self.forward(found.pooled)
        return TokenStates(*map(self.head, found))

    def hidden_states(self, token_ids: Tensor, source: StateSource | None) -> TokenStates:
        raise NotImplementedError("the states are those of the frozen tower")


def unpacked(rows: Tensor) -> Tensor | TokenStates:
    """The features [b f] or, from rows [b 1+2l f], the features and the states of tokens."""
    if rows.ndim == 2:
        return rows
    length = rows.shape[1] // 2
    return TokenStates(rows[:, 0], *rows[:, 1:].split(length, dim=1))


def head_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Head` among those of a tower; the others name the frozen tower."""
    return {key: kwargs[key] for key in ("width", "hidden", "depth") if key in kwargs}
