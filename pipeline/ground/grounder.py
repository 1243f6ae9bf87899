"""What a grounding network looks like from outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]  # RGB [h w 3]
Span = tuple[int, int]  # characters [start, end) of the caption
Box = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in [0, 1]


@dataclass(frozen=True)
class Detection:
    """A box for the phrase with this index among the spans that were asked for."""

    phrase: int
    box: Box
    score: float


class Grounder(Protocol):
    """Finds the phrases of captions in images. Images of one call have the same size."""

    def __call__(
        self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> Sequence[list[Detection] | None]:
        """The boxes of each image, in any order, with every score above the floor it was loaded with.

        None where no phrase could even be asked for (emoji only, say).
        """
        ...
