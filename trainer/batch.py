"""Data classes of one training step: the batch, its features, the lifted points and the losses.

Shapes: b pairs and m boxes on this rank, n pairs on all ranks, d embedding width, l and l' tokens of the longest
caption and of the longest phrase, w words of the longest caption. Lifted points are [b d], or [k b d/k] in a product of
k factors.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.text.syntax import Syntax


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of b images with their captions, and of m boxes in these images with their phrases.

    Images are float in [0, 1] or uint8; the model converts uint8 to float on its device.
    """

    images: Tensor  # [b 3 h w]
    token_ids: Tensor  # [b l]
    box_images: Tensor | None = None  # [m 3 h w]
    box_token_ids: Tensor | None = None  # [m l']
    box_owner: Tensor | None = None  # [m] index of the pair that each box belongs to, ascending; None: box i of pair i
    keys: tuple[str, ...] = ()  # keys of the b samples, for error messages
    syntax: Syntax | None = None  # parses of the b captions

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """Return a copy with every tensor on `device`."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of every tensor until `stream` has executed what is queued on it now."""

        def record(tensor: Tensor) -> Tensor:
            tensor.record_stream(stream)
            return tensor

        self.map(record)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Return a copy with `function` applied to each tensor."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tensors = {name: function(value) for name, value in values.items() if isinstance(value, Tensor)}
        parses = {name: value.map(function) for name, value in values.items() if isinstance(value, Syntax)}
        return dataclasses.replace(self, **tensors, **parses)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Inputs of the losses: features before the lift, plus parse and box ownership.

    Optional fields are None if the batch or the model does not provide them.
    """

    image: Tensor  # [b d]
    text: Tensor  # [b d]
    box_image: Tensor | None = None  # [m d]
    box_text: Tensor | None = None  # [m d]
    box_owner: Tensor | None = None  # [m] as in `Batch`
    word_initial: Tensor | None = None  # [b w d] words without context
    word_contextual: Tensor | None = None  # [b w d] words in the context of their captions
    syntax: Syntax | None = None  # as in `Batch`


@dataclass(frozen=True, kw_only=True)
class LiftedPairs:
    """Lifted images and captions of this rank, and those of all ranks, which contain them."""

    image: Tensor  # [*k b d]
    text: Tensor  # [*k b d]
    all_images: Tensor  # [*k n d]
    all_texts: Tensor  # [*k n d]


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Output of a model for a batch: the loss to minimise, and the detached terms to log, by name."""

    loss: Tensor
    terms: dict[str, Tensor]
