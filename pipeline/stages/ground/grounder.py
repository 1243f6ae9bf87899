"""The interface of grounding models, and what all of them use."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from hypergrit_common.images import Image

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Span = tuple[int, int]
"""Characters [start, end) of a caption."""
Box = tuple[float, float, float, float]
"""Corners x_min, y_min, x_max, y_max, as fractions of the image in [0, 1]."""
PhraseDrop = Literal[
    "bad_span", "no_word_piece", "unknown_words", "too_many_word_pieces", "unreadable_answer", "refused_request"
]
"""Reasons why a grounder cannot ground a phrase (schemas.status.PHRASE_REMOVALS)."""


@dataclass(frozen=True)
class Detection:
    """A box and the index of its phrase in the spans that the grounder received."""

    phrase: int
    """Index, from 0."""
    box: Box
    """Fractions of the image as the grounder received it, before any resizing or padding."""
    score: float
    """Confidence in [0, 1], which `score.min_score` compares."""


@dataclass(frozen=True, kw_only=True)
class Grounded:
    """The result for one image."""

    boxes: list[Detection]
    """Boxes with a score of at least `ground.floor`, in any order; several of a phrase are allowed."""
    dropped: Mapping[int, PhraseDrop] = field(default_factory=dict)
    """Index of a phrase that could not be grounded -> the reason."""
    presence: Mapping[int, float] = field(default_factory=dict)
    """Index of a phrase -> probability that the image shows it, of grounders that predict it (SAM 3)."""


@runtime_checkable
class Grounder(Protocol):
    """A model that locates the phrases of captions in images. One of the user takes a GroundConfig.

    Each batch goes through `prepare`, `forward` and `collect`. The ground stage calls the three methods in different
    threads, so that a GPU can start the next batch while the results of the previous one are processed. An exception
    drops the rows that cause it as `internal_error`; a UserError ends the job.
    """

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Return the bucket of an image size. Only images of the same bucket can share a batch.

        Args:
            height: height of the stored image, in pixels.
            width: its width.

        Returns:
            Any pair of numbers; batches are made in its order.
        """
        ...

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Any:
        """Compute the network's input for a batch, on the CPU.

        Args:
            images: 1 to `ground.batch_size` images of one bucket, uint8 RGB [h w 3].
            captions: the caption of each image.
            spans: the phrases of each caption, at least one, as characters [start, end). With `check_expressions`, the
                expressions come after the noun chunks that they contain. They should not change the boxes of these.

        Returns:
            What `forward` takes.
        """
        ...

    def forward(self, prepared: Any) -> Any:
        """Run the network. On a GPU, the computation may still be running when this returns.

        Args:
            prepared: a result of `prepare`.

        Returns:
            What `collect` takes.
        """
        ...

    def collect(self, output: Any) -> list[Grounded]:
        """Wait for the output of `forward`, and convert it.

        Args:
            output: a result of `forward`.

        Returns:
            The result of each image, in the order of the batch. A row without a box is dropped as `no_box`, or as
                `ungroundable` if all its phrases are in `dropped`.
        """
        ...


def apart(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Return the indices of the spans that overlap none of them before, and those of the others."""
    first, rest = list[int](), list[int]()
    for n, (start, end) in enumerate(spans):
        is_apart = all(end <= spans[k][0] or spans[k][1] <= start for k in first)
        (first if is_apart else rest).append(n)
    return first, rest


T = TypeVar("T")
R = TypeVar("R")


def prefetch(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield `function(item)` in order; a thread computes the next result while the caller uses the current one."""
    with ThreadPoolExecutor(1) as pool:
        pending = None
        for item in items:
            ready, pending = pending, pool.submit(function, item)
            if ready is not None:
                yield ready.result()
        if pending is not None:
            yield pending.result()


# Asynchronous copies between CPU and GPU.


def pinned(tensor: "Tensor", device: "torch.device") -> "Tensor":
    """Copy a tensor to pinned memory for an asynchronous copy to a GPU; return it unchanged if `device` is a CPU."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def take(tensors: "Sequence[Tensor]", rows: list[int]) -> "list[Tensor]":
    """Return the given rows of each tensor of a batch.

    Indexing with a Python list would copy the list to the GPU synchronously; this copies it from pinned memory.
    """
    import torch

    n, device = len(tensors[0]), tensors[0].device
    if rows == list(range(n)):
        return list(tensors)
    index = pinned(torch.tensor(rows), device).to(device, non_blocking=True)
    return [tensor.index_select(0, index) for tensor in tensors]


class OnCpu:
    """Asynchronous copies of tensors on the CPU; call `wait` before use."""

    def __init__(self, tensors: "Iterable[Tensor]") -> None:
        import torch

        tensors = list(tensors)
        self.copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # into pinned memory
        self.event = None
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is not None:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(device))  # not of the current device, which may be another GPU

    def wait(self) -> "list[Tensor]":
        """Return the copies once they are complete."""
        if self.event is not None:
            self.event.synchronize()
        return self.copies
