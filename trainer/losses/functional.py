"""Loss functions of logits, angles and entropies. They depend on no model and do not communicate between ranks.

Shapes: b queries, n candidates (of all ranks), w words of the longest caption, d embedding width, k factors.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.losses.types import Entropy, Reduction


def contrastive(logits: Tensor, targets: Tensor | None = None) -> Tensor:
    """Cross entropy of each query's candidate against all candidates, mean over queries.

        -1/b sum_i log( exp(logits[i, targets[i]]) / sum_j exp(logits[i, j]) )      CLIP, figure 3; MERU, section 3

    Args:
        logits: similarities [b n], divided by the temperature.
        targets: index of each query's candidate [b]; default: candidate i for query i.

    Returns:
        A scalar; 0 without queries (b = 0).
    """
    if targets is None:
        targets = torch.arange(len(logits), device=logits.device)
    return F.cross_entropy(logits, targets, reduction="mean" if len(logits) else "sum")


def angle_outside_cone(angle: Tensor, aperture: Tensor, eta: float = 1.0) -> Tensor:
    """Angles by which points lie outside the cones of their apexes, in radians; 0 for points inside.

        max(0, exterior angle - eta * half-aperture)      MERU eq. 12; HyCoCLIP eq. 8 and 10 with eta

    Args:
        angle: exterior angles at the apexes, of any shape.
        aperture: half-apertures of their cones; broadcasts with `angle`.
        eta: factor of the apertures.

    Returns:
        Energies, of the broadcast shape.
    """
    return (angle - eta * aperture).clamp(min=0)


def mean_over_pairs(energies: Tensor) -> Tensor:
    """Mean of energies over pairs, and over the factors of a product (PHyCLIP eq. 5).

    Args:
        energies: [b], or [k b] of k factors.

    Returns:
        A scalar; 0 without pairs.
    """
    return energies.mean() if energies.numel() else energies.sum()


def huber_angle(angle: Tensor, weight: Tensor, delta: float) -> Tensor:
    """Energies that pull points onto the rays of their apexes, in any shape. ARGENT has no apertures.

        h(weight * angle), h(x) = x^2 / 2 up to delta, then delta (x - delta / 2)      (arXiv 2603.23311)

    Args:
        angle: exterior angles in radians, of any shape.
        weight: factor of the angles; broadcasts with them.
        delta: weighted angle, above 0, from which the energy is linear.

    Returns:
        Energies, of the broadcast shape.
    """
    scaled = weight * angle
    return F.huber_loss(scaled, torch.zeros_like(scaled), reduction="none", delta=delta)


def log_barrier(norms: Tensor) -> Tensor:
    """Mean of |x|^2 - log |x| over points: ARGENT's regulariser (arXiv 2603.23311), smallest at |x| = 1 / sqrt(2).

    Args:
        norms: |x| [m], above 0; the term of a norm of 0 is infinite.

    Returns:
        A scalar; 0 without points.
    """
    return mean_over_pairs(norms.square() - norms.log())


def regularised_entailment(angle: Tensor, aperture: Tensor, reward: float, eta: float = 1.0) -> Tensor:
    """Angles outside the cone less a reward for wide angles, which prevents the collapse of the angles.

        max(0, exterior angle - eta * half-aperture) - reward * exterior angle      PoinCLIP eq. 9, where eta is 1

    The derivative with respect to the angle is 1 - reward outside the cone and -reward inside, so for a reward below 1
    the minimum is at the boundary of the cone.

    Args:
        angle: exterior angles in radians, of any shape.
        aperture: half-apertures of the cones; broadcasts with `angle`.
        reward: the paper's lambda_reg, from 0 to 1.
        eta: factor of the apertures.

    Returns:
        Energies, which may be negative, of the broadcast shape.
    """
    return angle_outside_cone(angle, aperture, eta) - reward * angle


def entropy(points: Tensor, kind: Entropy = "abs") -> Tensor:
    """Entropies of points over their coordinates, in bits.

        -sum_i p_i log2 p_i      PoinCLIP eq. 6

    In the paper, p_i are the coordinates x_i themselves, which can be negative and do not sum to 1.

    Args:
        points: [*b d].
        kind: what p_i is.

            - "abs": |x_i|. In the ball the coordinates are small, so the entropy grows with the radius, as the paper
              states.
            - "normalised": |x_i| / sum_j |x_j|. The entropy does not depend on the radius; at the origin it is not a
              number.
            - "softmax": softmax(x)_i. The entropy falls with the radius.

    Returns:
        Entropies [*b].
    """
    match kind:
        case "abs":
            p = points.abs()
        case "normalised":
            p = points.abs() / points.abs().sum(-1, keepdim=True)
        case "softmax":
            p = points.softmax(-1)
    return -torch.special.xlogy(p, p).sum(-1) / math.log(2)


def mean_over_captions(values: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Reduce the values of each caption, then average over captions.

    Args:
        values: numbers of the words of each caption [b w]; those that `mask` excludes can be anything.
        mask: True for the words that count [b w].
        reduction: "mean" or "sum" over the words that count. A caption without any counts as 0.

    Returns:
        A scalar.
    """
    sums = values.masked_fill(~mask, 0).sum(1)
    match reduction:
        case "mean":
            return (sums / mask.sum(1).clamp(min=1)).mean()
        case "sum":
            return sums.mean()
