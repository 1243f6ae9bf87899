"""What a grounding network looks like from outside."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from common.images import Image

Span = tuple[int, int]  # characters [start, end) of the caption
Box = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in [0, 1]
PhraseDrop = Literal["bad_span", "no_word_piece", "unknown_words", "too_many_word_pieces"]
"""Why a phrase cannot be asked for (schemas.status.PHRASE_REMOVALS)."""


@dataclass(frozen=True)
class Detection:
    """A box for the phrase with this index among the spans that were asked for."""

    phrase: int
    box: Box
    score: float


@dataclass(frozen=True, kw_only=True)
class Grounded:
    """What a grounder says of one image: every phrase was asked for, or is in `dropped` with the reason."""

    boxes: list[Detection]  # in any order, every one that scores at least the floor
    dropped: Mapping[int, PhraseDrop] = field(default_factory=dict)


class Grounder(Protocol):
    """Finds the phrases of captions in images.

    Three steps, each beside the others in a thread of its own, so that a GPU has the next batch before the last one's answers are
    looked at.
    """

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Images whose buckets agree can share a batch."""
        ...

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Any:
        """What the network reads: images and captions before it."""
        ...

    def forward(self, prepared: Any) -> Any:
        """What the network says. On a GPU it may still be at work when this returns."""
        ...

    def collect(self, output: Any) -> list[Grounded]:
        """The answer for each image, from what `forward` returned, once it is there."""
        ...


T = TypeVar("T")
R = TypeVar("R")


def prefetch(make: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`make` of each item in order; the next one is made by another thread while the caller works on this one."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for item in items:
            ready, waiting = waiting, pool.submit(make, item)
            if ready is not None:
                yield ready.result()
        if waiting is not None:
            yield waiting.result()
