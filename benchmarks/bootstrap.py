"""Bootstrap intervals of the figures that benchmarks report."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

ROUNDS: Final = 1000
"""Bootstrap samples."""
T = TypeVar("T")


def intervals(
    figures: Callable[[Sequence[T]], Mapping[str, float]], items: Sequence[T], rounds: int = ROUNDS
) -> dict[str, tuple[float, float]]:
    """Return the 95 % bootstrap interval of each figure over `items`. All figures use the same samples."""
    rng = Random(0)
    samples = [figures(rng.choices(items, k=len(items))) for _ in range(rounds)]
    ordered = {name: sorted(sample[name] for sample in samples) for name in samples[0]}
    return {name: (values[int(0.025 * rounds)], values[int(0.975 * rounds)]) for name, values in ordered.items()}
