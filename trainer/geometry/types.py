"""Types and defaults of the geometry's settings. Does not import torch."""

from typing import Final, Literal

Metric = Literal["l1", "l2"]
"""Distance in a product of factors: l1, the mean of the factors' distances; l2, the root of their mean square."""
Lift = Literal["conformal", "isometric"]
"""Exponential map of the Poincaré ball: conformal, PoinCLIP's own; isometric, MERU's map transferred to the ball."""

EPS: Final = 1e-8
"""Default of the small numbers that keep square roots and logarithms finite."""
