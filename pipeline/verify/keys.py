"""Find keys that are in more than one shard: every row has a key of its own in the whole output."""

from array import array
from dataclasses import dataclass, field
from typing import Final

import numpy as np

CHUNK: Final = 1 << 16
"""Consecutive numbers whose bits are in one array, of 8 KiB."""


@dataclass
class ShardKeys:
    """The keys of the rows of a shard: numbers, as `read` gives them, and other texts."""

    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    texts: list[str] = field(default_factory=list)

    def add(self, key: str) -> None:
        """Add the key of a row."""
        if key.isascii() and key.isdigit() and len(key) <= 18 and f"{int(key):012d}" == key:
            self.numbers.append(int(key))
        else:
            self.texts.append(key)


class AllKeys:
    """The keys of the shards seen so far: a bit for each number, and the texts. 10^9 rows take 125 MB."""

    def __init__(self) -> None:
        self._bits: dict[int, np.ndarray] = {}
        self._texts: set[str] = set()

    def add(self, keys: ShardKeys) -> list[str]:
        """Add the keys of a shard; return those that another shard has."""
        repeated = sorted(self._texts & set(keys.texts))
        self._texts.update(keys.texts)
        if not keys.numbers:
            return repeated
        numbers = np.unique(np.frombuffer(keys.numbers, np.int64))
        chunks, starts = np.unique(numbers // CHUNK, return_index=True)
        for chunk, places in zip(chunks.tolist(), np.split(numbers % CHUNK, starts[1:]), strict=True):
            flags = np.zeros(CHUNK, bool)
            flags[places] = True
            new, old = np.packbits(flags), self._bits.get(chunk)
            if old is not None:
                found = np.flatnonzero(np.unpackbits(new & old))
                repeated += [f"{chunk * CHUNK + place:012d}" for place in found.tolist()]
                new |= old
            self._bits[chunk] = new
        return repeated
