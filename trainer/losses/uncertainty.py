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
    """Energies [*m] that pull points further into the cone: max(0, angle - eta * half-aperture) + leak * angle."""
    return angle_outside_cone(angle, aperture, eta) + leak * angle


def uncertainty(points: Tensor) -> Tensor:
    """Uncertainties u = log(1 + exp(-|x|)) [m] of points [m d]; those near the origin are the most uncertain."""
    return F.softplus(-points.norm(dim=-1))


def temperature_factors(points: Tensor) -> Tensor:
    """Factors [m] on the logits of points [m d], without gradient: exp(-u / 2), which softens uncertain rows.

    The limits are those of the released code; u is at most log 2, so they are never reached.
    """
    return (-uncertainty(points) / 2).exp().clamp(MIN_FACTOR, MAX_FACTOR).detach()


def calibration(residual: Tensor, u: Tensor, rule: Calibration) -> Tensor:
    """Terms [m] that are smallest if the uncertainty `u` [m] follows the energy `residual` [m].

    paper: residual * exp(-u) + u; released: half of it, with `EPS` in the denominator.
    """
    match rule:
        case "paper":
            return residual * (-u).exp() + u
        case "released":
            return (residual / (u.exp() + EPS) + u) / 2


def spread(u: Tensor) -> Tensor:
    """Entropy [] of softmax(u) over uncertainties [m], in nats. The loss adds it, so its minimisation spreads them."""
    p = u.softmax(0)
    return -(p * torch.log(p + EPS_LOG)).sum()
