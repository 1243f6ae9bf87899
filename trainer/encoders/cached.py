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
        """Return features [b f] of normalised images [b 3 h w]."""
        ...

    def patches(self, pixels: Tensor) -> Tensor:
        """Return features and states of the p patches [b 1+p f] of normalised images [b 3 h w]."""
        ...

    def text(self, token_ids: Tensor, source: StateSource | None) -> Tensor | TokenStates:
        """Return features [b f] of token ids [b l] int64; with `source`, also the states [b l f] of their tokens."""
        ...


def missing() -> NoReturn:
    """The frozen model of a head without one."""
    raise ValueError("this model is a head without its frozen tower; load it with trainer.load_model, or give features")


class Head(nn.Module):
    """Standardised features [... f] through hidden layers to [... w]: each is linear, GELU, LayerNorm.

    Without a hidden layer, only the projection of the model is trained on them, as in MERU's table 3.

    Args:
        width: width f of the features.
        hidden: width of the hidden layers.
        depth: number of hidden layers; 0: the features are standardised alone, and w = f.

    Raises:
        ValueError: a width is below 1, or the depth below 0.
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
        """Standardise by a sample: mean and standard deviation of its features become 0 and 1.

        Features that hardly vary are divided by LEAST_STD times the mean deviation of all features instead of their
        own.

        Args:
            features: sample [n f]; the statistics are computed in float64.
        """
        found = features.double()
        std = found.std(0, correction=0)
        self.mean.copy_(found.mean(0))
        self.std.copy_(std.clamp(min=max(LEAST_STD * std.mean().item(), 1e-12)))


class CachedImage(nn.Module):
    """Features [b w] of images: of normalised pixels [b 3 h w], or of stored features [b f].

    As networks of timm do, it also gives the states before the pooling, here of p patches (trainer.encoders.build).
    Stored ones are rows [b 1+p f]: the feature of an image, and the states of its patches.

    `frozen` and `place` return the frozen model and its path; `trainer.checkpoints.towers.attach_tower` sets them.

    Args:
        kwargs: `ImageConfig.kwargs`: `width`, `hidden` and `depth` of the `Head`; other keys name the frozen model.

    Raises:
        ValueError: the sizes of the head are not possible; in `forward`, pixels are given to a head without its model.
    """

    num_prefix_tokens = 1

    def __init__(self, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.head = Head(**head_arguments(kwargs))
        self.num_features = self.head.num_features
        self.frozen: Callable[[], Frozen] = missing
        self.place: Callable[[], Path] = missing  # where the frozen model was found

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images.

        Args:
            images: normalised pixels [b 3 h w], which pass through the frozen tower first, or its stored features [b
                f].

        Returns:
            Features [b w] of the head.
        """
        features: Tensor = self.head(images if images.ndim == 2 else self.frozen().image(images))
        return features

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the features and the states of the patches of images.

        Args:
            images: normalised pixels [b 3 h w], stored states [b 1+p f], or stored features alone [b f], with p = 0.

        Returns:
            States [b 1+p w] of the head.
        """
        rows = images[:, None] if images.ndim == 2 else images if images.ndim == 3 else self.frozen().patches(images)
        states: Tensor = self.head(rows)
        return states

    def forward_head(self, states: Tensor, pre_logits: bool = True) -> Tensor:
        """Return the features among the states of `forward_features`.

        Args:
            states: of the head [b 1+p w].
            pre_logits: as in networks of timm; a head has no classifier.

        Returns:
            Features [b w].
        """
        return states[:, 0]


class CachedText(TextTower):
    """Features [b w] of texts: of token ids [b l] (integers), or of stored features [b f] (floating point).

    Stored states of tokens are rows [b 1+2l f]: the feature of a text, its initial and its contextual states.

    Args:
        config: settings with `name` "cached"; `kwargs` as in `CachedImage`.

    Raises:
        ValueError: the sizes of the head are not possible; in `forward`, ids are given to a head without its model.
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
        return TokenStates(self.head(found.pooled), *map(self.token_states, (found.initial, found.contextual)))

    def token_states(self, states: Tensor) -> Tensor:
        """States [b l w] of the head. Padding, which is zeros in stored features, takes no time and stays zeros."""
        is_used = states.any(-1)
        used = self.head(states[is_used])
        found: Tensor = used.new_zeros(*is_used.shape, self.num_features).index_put((is_used,), used)
        return found

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
