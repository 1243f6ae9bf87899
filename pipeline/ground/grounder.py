"""The interface of grounding models."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from common.images import Image

Span = tuple[int, int]
"""Characters [start, end) of a caption."""
Box = tuple[float, float, float, float]
"""Corners x_min, y_min, x_max, y_max, as fractions of the image in [0, 1]."""
PhraseDrop = Literal["bad_span", "no_word_piece", "unknown_words", "too_many_word_pieces"]
"""Reasons why a grounder cannot ground a phrase (schemas.status.PHRASE_REMOVALS)."""


@dataclass(frozen=True)
class Detection:
    """A box and the index of its phrase in the spans that the grounder received."""

    phrase: int
    box: Box
    score: float


@dataclass(frozen=True, kw_only=True)
class Grounded:
    """The result for one image: boxes with a score of at least `ground.floor`, in any order."""

    boxes: list[Detection]
    dropped: Mapping[int, PhraseDrop] = field(default_factory=dict)
    """Index of a phrase that could not be grounded -> the reason."""


class Grounder(Protocol):
    """A model that locates the phrases of captions in images.

    Each batch goes through `prepare`, `forward` and `collect`. The ground stage calls the three methods in different
    threads, so that a GPU can start the next batch while the results of the previous one are processed.
    """

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Return the bucket of an image size in pixels. Only images of the same bucket can share a batch."""
        ...

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Any:
        """Return the network's input for a batch; `spans` holds the phrases of each caption."""
        ...

    def forward(self, prepared: Any) -> Any:
        """Run the network. On a GPU, the computation may still be running when this returns."""
        ...

    def collect(self, output: Any) -> list[Grounded]:
        """Wait for the output of `forward` and return the result of each image."""
        ...


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
