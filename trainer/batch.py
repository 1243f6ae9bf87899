"""Data classes of one training step: the batch, its features and the losses.

Shapes: b pairs and m boxes on this rank, n pairs on all ranks, d embedding width, l and l' tokens of the longest
caption and of the longest phrase, w words of the longest caption. Lifted points are [b d], or [k b d/k] in a product of
k factors.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hypergrit_common.errors import NotFiniteError
from trainer.text.syntax import Syntax

Side = Literal["image", "text"]
"""Modality of a row, which selects its tower and its lift."""


class Stream(NamedTuple):
    """Rows of one kind, such as all phrases of a batch, and the pairs that own them."""

    rows: Tensor  # [m *] images or token ids, or [m d] features
    side: Side
    owner: Tensor | None = None  # [m] index of the pair that owns each row, ascending; None: row i belongs to pair i
    depth: Tensor | None = None  # [m] level of each label of a taxonomy, ascending within a pair
    label: Tensor | None = None  # [m] number that equal labels of one level share, on all ranks
    place: Tensor | None = None  # [m] the row of each label: equal texts are one row. None: row i is that of label i
    chain: int = 0  # labels of the longest chain, or the most queries of a pair
    weight: Tensor | None = None  # [m] weight of each query in the loss
    parent: Tensor | None = None  # [m] row of the query above each query; -1: the caption

    def map(self, function: Callable[[Tensor], Tensor]) -> "Stream":
        """Return a copy with `function` applied to each tensor."""
        tensors = {name: function(value) for name, value in self._asdict().items() if isinstance(value, Tensor)}
        return self._replace(**tensors)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of b images with their captions, and of m boxes in these images with their phrases.

    Images are float in [0, 1] or uint8; the model converts uint8 to float on its device.
    """

    images: Tensor  # [b 3 h w]
    token_ids: Tensor  # [b l]
    box_images: Tensor | None = None  # [m 3 h w]
    box_token_ids: Tensor | None = None  # [m l']
    packed: Tensor | None = None  # [t] places in the flat `token_ids` of the tokens, without padding; None: not packed
    box_packed: Tensor | None = None  # [t'] the same of `box_token_ids`
    box_owner: Tensor | None = None  # [m] index of the pair that each box belongs to, ascending; None: box i of pair i
    box_equal: Tensor | None = None  # [m] True for a phrase with the tokens of its caption
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # `owned` of every rank; empty: not known yet
    announced: Tensor | None = None  # [s ranks] the s numbers `owned` of this rank in the batch after the next
    keys: tuple[str, ...] = ()  # keys of the b samples, for error messages
    syntax: Syntax | None = None  # parses of the b captions
    more: Mapping[str, Stream] = field(default_factory=dict)  # images or token ids of further streams, by name

    @property
    def owned(self) -> dict[str, int]:
        """Numbers of rows of the streams with owners, by name; phrases have those of box_image."""
        owners = {"box_image": self.box_owner} | {name: stream.owner for name, stream in self.more.items()}
        return {name: len(owner) for name, owner in owners.items() if owner is not None}

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
        more = {name: stream.map(function) for name, stream in self.more.items()}
        return dataclasses.replace(self, **tensors, **parses, more=more)  # type: ignore[arg-type]


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
    box_equal: Tensor | None = None  # [m] as in `Batch`
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # as in `Batch`
    word_initial: Tensor | None = None  # [b w d] words without context
    word_contextual: Tensor | None = None  # [b w d] words in the context of their captions
    syntax: Syntax | None = None  # as in `Batch`
    more: Mapping[str, Stream] = field(default_factory=dict)  # features of the streams `Batch.more`
    step: int = 0  # number of completed steps of the training

    @property
    def streams(self) -> dict[str, Stream]:
        """The features by the name of their stream: "image", "text", "box_image", "box_text", and those of `more`."""
        found = {"image": Stream(self.image, "image"), "text": Stream(self.text, "text")}
        if self.box_image is not None and self.box_text is not None:
            found["box_image"] = Stream(self.box_image, "image", self.box_owner)
            found["box_text"] = Stream(self.box_text, "text", self.box_owner)
        return {**found, **self.more}


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Output of a model for a batch: the loss to minimise, and detached results by name.

    `energies` are those of the entailment relations, one per pair of points, by the name of the relation. `points` are
    the lifted points of this rank, by stream.
    """

    loss: Tensor
    terms: dict[str, Tensor]  # to log; [] or one value per factor
    energies: dict[str, Tensor] = field(default_factory=dict)  # [*k b] or [*k m]
    points: dict[str, Tensor] = field(default_factory=dict)  # [*k b d] or [*k m d]


def check_finite(rows: Tensor, what: str) -> Tensor:
    """Return rows [n *]. Raises NotFiniteError, with their number, if some have values that are NaN or infinite."""
    n_bad = len(rows) - int(torch.isfinite(rows).flatten(1).all(1).sum())
    if n_bad:
        raise NotFiniteError(
            f"the features of {n_bad} of {len(rows)} {what} are not finite, so there is no result; compute in "
            "precision=fp32, or take an earlier checkpoint of the training"
        )
    return rows


def to_half(rows: Tensor, what: str) -> Tensor:
    """Return rows [n *] in float16. Raises NotFiniteError for values beyond its range, and as `check_finite`."""
    found = check_finite(rows, what).half()
    if not bool(torch.isfinite(found).all()):
        largest = rows.abs().max().item()
        raise NotFiniteError(
            f"{what} have values up to {largest:.3g}, beyond half precision, which ends at 65504; take another model or "
            "layer, or leave out half=True"
        )
    return found
