"""Choices of the geometry that settings name, without torch."""

from typing import Final, Literal

Metric = Literal["l1", "l2"]
"""Distance in a product of spaces."""
Lift = Literal["conformal", "isometric"]
"""Map from features to the Poincaré ball."""

EPS: Final = 1e-8
"""Default of the small numbers that keep roots and logarithms finite."""
