"""The most frequent texts of a stream, in bounded memory.

Misra & Gries, "Finding repeated elements" (1982), merged as in Agarwal et al., "Mergeable summaries" (2012), section 3:
add the counts of equal texts, then subtract the (m + 1)-th largest count from all and keep the positive ones.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

CAPACITY: Final = 8192
"""Texts m that a stored sketch holds."""
SLACK: Final = 16
"""Texts that `merge` holds before it shrinks a sketch, in capacities."""


class Frequent:
    """Lower bounds of the counts of texts: the true count of each is in [count, count + error], 0 for a missing text.

    The error is at most (n - sum of the counts) / (m + 1), where n is the length of the stream, and 0 up to m distinct
    texts. `update` does not shrink the sketch.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.counts: Counter[str] = Counter()
        self.error = 0

    def update(self, texts: Iterable[str] | Mapping[str, int]) -> None:
        """Count texts."""
        self.counts.update(texts)

    def merge(self, other: "Frequent") -> None:
        """Add the counts of another sketch."""
        self.counts.update(other.counts)
        self.error += other.error
        if len(self.counts) > SLACK * self.capacity:
            self.shrink()

    def shrink(self) -> None:
        """Keep at most `capacity` texts."""
        if len(self.counts) <= self.capacity:
            return
        threshold = heapq.nlargest(self.capacity + 1, self.counts.values())[-1]
        self.error += threshold
        self.counts = Counter({text: n - threshold for text, n in self.counts.items() if n > threshold})

    def upper_bounds(self) -> Counter[str]:
        """Return the texts that occur more often than any missing text can, with the upper bounds of their counts.

        The bound of a text that was frequent in every part of the stream is its true count.
        """
        return Counter({text: n + self.error for text, n in self.counts.items() if n > self.error})

    def to_json(self) -> dict[str, Any]:
        """Return the sketch, the most frequent texts first."""
        items = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return {"texts": [text for text, _ in items], "counts": [n for _, n in items], "error": self.error}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Frequent":
        """Return the sketch that `to_json` describes."""
        sketch = cls()
        sketch.counts = Counter(dict(zip(value["texts"], value["counts"], strict=True)))
        sketch.error = int(value["error"])
        return sketch
