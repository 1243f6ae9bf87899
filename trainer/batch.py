"""Data classes of one training step: the batch, first of inputs and then of features, and the losses.

Shapes: b pairs and m boxes on this rank, n pairs on all ranks, d embedding width, l and l' tokens of the longest
caption and of the longest phrase, w words of the longest caption. Lifted points are [b d], or [k b d/k] in a product of
k factors.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hypergrit_common.errors import NotFiniteError
from trainer.text.syntax import Syntax

Side = Literal["image", "text"]
"""Modality of a row, which selects its tower and its lift."""


class Stream(NamedTuple):
    """Rows of one kind, such as all phrases of a batch, and the pairs that own them."""

    rows: Tensor  # [m *] images, token ids or stored features; then features [m d], of words [b w d]
    side: Side
    owner: Tensor | None = None  # [m] index of the pair that owns each row, ascending; None: row i belongs to pair i
    depth: Tensor | None = None  # [m] level of each label of a taxonomy, ascending within a pair
    label: Tensor | None = None  # [m] number that equal labels of one level share, on all ranks
    place: Tensor | None = None  # [m] the row of each label: equal texts are one row. None: row i is that of label i
    chain: int = 0  # most rows of a pair: labels of the longest chain, or queries
    weight: Tensor | None = None  # [m] weight of each query in the loss
    parent: Tensor | None = None  # [m] row of the query above each query; -1: the caption
    packed: Tensor | None = None  # [t] places in the flat token ids of the tokens, without padding; None: not packed
    equal: Tensor | None = None  # [m] True for a phrase with the tokens of its caption
    syntax: Syntax | None = None  # parses of the b captions

    def map(self, function: Callable[[Tensor], Tensor]) -> "Stream":
        """Return a copy with `function` applied to each tensor."""
        tensors = {name: function(value) for name, value in self._asdict().items() if isinstance(value, Tensor)}
        return self._replace(**tensors, syntax=self.syntax and self.syntax.map(function))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Streams of b pairs: what the towers read, and then the features that they give, before the lift.

    "image" and "text" hold the pairs, "box_image" and "box_text" their boxes and phrases. Images are float in [0, 1] or
    uint8; the model converts uint8 to float on its device. Streams of the same owners hold the same tensor of them.
    """

    streams: dict[str, Stream]
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # `owned` of every rank; empty: not known yet
    announced: Tensor | None = None  # [s ranks] the s numbers `owned` of this rank in the batch after the next
    keys: Sequence[str] = ()  # keys of the b samples, for error messages
    step: int = 0  # number of completed steps of the training

    def __getitem__(self, name: str) -> Stream:
        """Return a stream. Raises ValueError if the batch lacks it."""
        if name not in self.streams:
            is_box, found = name.startswith("box_"), ", ".join(self.streams)
            fix = "train on shards with boxes, or set use_boxes=false" if is_box else "name it in a term or in `needs`"
            raise ValueError(f"the loss needs the stream {name}, but the batch has only {found}; {fix}")
        return self.streams[name]

    @property
    def owned(self) -> dict[str, int]:
        """Numbers of rows of the streams with owners, by name; of those with the same owners, the first one."""
        owners = ((name, stream.owner) for name, stream in reversed(self.streams.items()))
        return dict({id(owner): (name, len(owner)) for name, owner in owners if owner is not None}.values())

    def with_rows(self, rows: Mapping[str, Tensor]) -> "Batch":
        """Return a copy whose streams of these names have other rows."""
        changed = {name: self[name]._replace(rows=value) for name, value in rows.items()}
        return dataclasses.replace(self, streams={**self.streams, **changed})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """Return a copy with every tensor on `device`."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Return a copy with every tensor in pinned memory."""
        return self.map(Tensor.pin_memory)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of every tensor until `stream` has executed what is queued on it now."""

        def record(tensor: Tensor) -> Tensor:
            tensor.record_stream(stream)
            return tensor

        self.map(record)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Return a copy with `function` applied to each tensor; streams with the same owners keep the same ones."""
        once = cache(function)
        announced = None if self.announced is None else once(self.announced)
        streams = {name: stream.map(once) for name, stream in self.streams.items()}
        return dataclasses.replace(self, streams=streams, announced=announced)


def named_streams(rows: Mapping[str, Tensor], owner: Tensor | None = None) -> dict[str, Stream]:
    """The streams with these rows by name: "image", "text", and "box_image" and "box_text" with their owners [m]."""
    return {
        name: Stream(value, "image" if name.endswith("image") else "text", owner if name.startswith("box_") else None)
        for name, value in rows.items()
    }


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
