"""Masks by which all hashes within a radius of each other are found with joins on equality."""

from itertools import combinations
from math import comb
from typing import Final

from pipeline.derive.phash import N_BITS

MAX_SPARE: Final = 5
JOIN_COST: Final = 1_000_000
"""Comparisons of which the time equals the fixed time of a join, roughly."""


def make_masks(radius: int, n_hashes: int) -> list[int]:
    """Return masks such that two hashes that differ in at most `radius` bits are equal under at least one of them.

    The bits are divided into radius + k bands; `radius` bits touch at most as many of them, so k bands are equal (the
    tables of Manku et al. 2007, section 3). There are C(radius + k, k) sets of k bands; k is chosen such that the joins
    of `n_hashes` evenly distributed hashes compare the fewest pairs: about C(radius + k, k) (n + n^2 / 2^(64 k /
    (radius + k)) / 2).
    """
    spare = min(range(1, MAX_SPARE + 1), key=lambda k: cost(radius, k, n_hashes)) if radius else 1
    n_bands = radius + spare
    cuts = [i * N_BITS // n_bands for i in range(n_bands + 1)]
    bands = [(1 << cuts[i + 1]) - (1 << cuts[i]) for i in range(n_bands)]
    return [sum(chosen) for chosen in combinations(bands, spare)]


def cost(radius: int, spare: int, n_hashes: int) -> float:
    """Return the expected number of comparisons with `radius + spare` bands."""
    pairs = n_hashes**2 / 2 / 2 ** (N_BITS * spare / (radius + spare))
    return comb(radius + spare, spare) * (JOIN_COST + n_hashes + pairs)
