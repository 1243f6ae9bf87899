"""Random permutations of 0..n-1 that are computed, not stored.

A Feistel network on pairs (a, b) of numbers below about sqrt(n), with modular sums in place of xor so that n need not
be a power of two (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 5). The few pairs
that do not stand for a number below n are mapped again until they do ("cycle walking", section 3).
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 8
Integers = NDArray[np.int64]


class Permutation:
    """The permutation of 0..n-1 that `entropy`, a few integers of at least 0, selects. Takes 8 numbers of memory."""

    def __init__(self, n: int, entropy: Sequence[int]) -> None:
        self.n = n
        self.rows = max(math.isqrt(max(n - 1, 0)) + 1, 1)  # the pair (a, b) stands for the number a * columns + b
        self.columns = max(-(-n // self.rows), 1)
        self.keys = np.random.SeedSequence(list(entropy)).generate_state(ROUNDS, np.uint64)

    def __call__(self, numbers: Integers) -> Integers:
        """Return the images of numbers in [0, n)."""
        result = self._encrypt(numbers)
        outside = np.flatnonzero(result >= self.n)
        while len(outside):
            result[outside] = self._encrypt(result[outside])
            outside = outside[result[outside] >= self.n]
        return result

    def _encrypt(self, numbers: Integers) -> Integers:
        a, b = np.divmod(numbers.astype(np.uint64), np.uint64(self.columns))
        for number, key in enumerate(self.keys):
            if number % 2:
                b = (b + mix(a + key)) % np.uint64(self.columns)
            else:
                a = (a + mix(b + key)) % np.uint64(self.rows)
        return (a * np.uint64(self.columns) + b).astype(np.int64)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit numbers to numbers below 2^32, so that sums do not overflow (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values >> np.uint64(32)
