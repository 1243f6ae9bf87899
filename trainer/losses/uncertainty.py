"""UNCHA's energies and uncertainties (arXiv 2603.22042), as functions of tensors.

Shapes: m boxes or phrases, d embedding width; [*m] is any shape.
"""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.losses.functional import angle_outside_cone
from trainer.losses.types import Calibration

MIN_FACTOR: Final = 0.1
MAX_FACTOR: Final = 10.0
EPS: Final = 1e-6
"""Added to exp(u) in the released code."""
EPS_LOG: Final = 1e-8
"""Added to probabilities in the logarithm of the entropy."""


def leaky_cone(angle: Tensor, aperture: Tensor, eta: float, leak: float) -> Tensor:
    """Energies that pull points further into the cone, and do not vanish inside.

        max(0, exterior angle - eta * half-aperture) + leak * exterior angle      UNCHA's released code

    Args:
        angle: exterior angles in radians, of any shape.
        aperture: half-apertures of the cones; broadcasts with `angle`.
        eta: factor of the apertures.
        leak: share of the angle that is added, 0.1 in the released code.

    Returns:
        Energies, of the broadcast shape.
    """
    return angle_outside_cone(angle, aperture, eta) + leak * angle


def uncertainty(points: Tensor) -> Tensor:
    """Uncertainties u = log(1 + exp(-|x|)) of points; those near the origin are the most uncertain.

    Args:
        points: space components of Lorentz points [m d]; |x| is their Euclidean norm.

    Returns:
        Uncertainties [m] from 0 to log 2.
    """
    return F.softplus(-points.norm(dim=-1))


def temperature_factors(points: Tensor) -> Tensor:
    """Factors exp(-u / 2) on the logits of points, which soften uncertain rows.

    The limits are those of the released code; u is at most log 2, so they are never reached.

    Args:
        points: space components of Lorentz points [m d].

    Returns:
        Factors [m] without gradient, from 1 / sqrt(2) to 1.
    """
    return (-uncertainty(points) / 2).exp().clamp(MIN_FACTOR, MAX_FACTOR).detach()


def calibration(residual: Tensor, u: Tensor, rule: Calibration) -> Tensor:
    """Terms that calibrate uncertainties to energies: they are smallest at u = log(residual).

        residual * exp(-u) + u      UNCHA's paper; the released code has half of it, with `EPS` in the denominator

    Args:
        residual: energies [m] of the relation, which the callers detach.
        u: uncertainties [m] of its general points.
        rule: "paper" or "released".

    Returns:
        Terms [m].
    """
    match rule:
        case "paper":
            return residual * (-u).exp() + u
        case "released":
            return (residual / (u.exp() + EPS) + u) / 2


def spread(u: Tensor) -> Tensor:
    """Entropy of softmax(u) over uncertainties. The loss adds it, so its minimisation spreads them.

    Args:
        u: uncertainties [m].

    Returns:
        A scalar in nats: log m for equal uncertainties, 0 without any.
    """
    p = u.softmax(0)
    return -(p * torch.log(p + EPS_LOG)).sum()
