"""A batch on its way through a model: pixels and tokens, features, lifted points, losses.

Shapes: b pairs here, m boxes here, n pairs on all ranks, d embedding width, l tokens, w words of the longest caption.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.text.syntax import Syntax


@dataclass(frozen=True, kw_only=True)
class Batch:
    """b pairs of a whole image and its caption, with m boxes of these images and the phrases they show.

    Images are float in [0, 1], or bytes, which the model brings there on its own device.
    """

    images: Tensor  # [b 3 h w]
    token_ids: Tensor  # [b l]
    box_images: Tensor | None = None  # [m 3 h w]
    box_token_ids: Tensor | None = None  # [m l']
    box_owner: Tensor | None = None  # [m] the pair each box belongs to, ascending; None: m = b, one box a pair
    keys: tuple[str, ...] = ()  # names of the b samples, for messages
    syntax: Syntax | None = None  # parse of the b captions

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch with every tensor on `device`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor | Syntax)}
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()}
        return dataclasses.replace(self, **moved)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """What losses are made of: features before the lift, and what else of the batch they ask for."""

    image: Tensor  # [b d]
    text: Tensor  # [b d]
    box_image: Tensor | None = None  # [m d]
    box_text: Tensor | None = None  # [m d]
    box_owner: Tensor | None = None  # [m] as in `Batch`
    word_initial: Tensor | None = None  # [b w d]
    word_contextual: Tensor | None = None  # [b w d]
    syntax: Syntax | None = None  # as in `Batch`


@dataclass(frozen=True, kw_only=True)
class LiftedPairs:
    """Lifted images and captions: `image` and `text` [* b d] of this rank, `images` and `texts` [* n d] of all."""

    image: Tensor
    text: Tensor
    images: Tensor
    texts: Tensor


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a model says about a batch: the loss to minimise, and its terms to log, without gradients."""

    loss: Tensor
    terms: dict[str, Tensor]
