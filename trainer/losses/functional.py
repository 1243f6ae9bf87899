"""Losses over similarities and geometry: functions of tensors, which know neither models nor ranks.

Shapes: b queries, n candidates (all ranks), of which `targets` [b] are the queries' own.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.losses.types import Entropy, Reduction


def contrastive(logits: Tensor, compatible: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
    """Cross entropy of each query's own candidate against all candidates, mean over queries.

        -1/b sum_i log( exp(logits[i, targets[i]]) / sum_j exp(logits[i, j]) )      CLIP, figure 3; MERU, section 3

    Without `targets` it is the candidate in the query's own place. The positive is part of the denominator.
    `compatible` [b n] marks candidates that are also right for a query; they are left out of its denominator, being
    neither right answers to prefer nor wrong ones to push away. Without queries it is 0.
    """
    if targets is None:
        targets = torch.arange(len(logits), device=logits.device)
    if compatible is not None:
        own = F.one_hot(targets, logits.shape[1]).bool()
        logits = logits.masked_fill(compatible & ~own, float("-inf"))
    return F.cross_entropy(logits, targets, reduction="mean" if len(logits) else "sum")


def outside_cone(angle: Tensor, aperture: Tensor, eta: float = 1.0) -> Tensor:
    """How far each point lies outside of its apex's cone, in radians. Of any shape.

    max(0, exterior angle - eta * half-aperture)      MERU eq. 12; HyCoCLIP eq. 8 and 10 with eta
    """
    return (angle - eta * aperture).clamp(min=0)


def over_pairs(energies: Tensor) -> Tensor:
    """Mean over pairs, and over factors where there are any (PHyCLIP eq. 5). Without pairs it is 0."""
    return energies.mean() if energies.numel() else energies.sum()


def regularised_entailment(angle: Tensor, aperture: Tensor, reward: float) -> Tensor:
    """Entailment that rewards wide angles, so that they do not collapse; may be negative.

        mean( max(0, exterior angle - half-aperture) - reward * exterior angle )      PoinCLIP eq. 9

    It rests on the cone's rim: outside the slope in the angle is 1 - reward, inside -reward.
    """
    return (outside_cone(angle, aperture) - reward * angle).mean()


def entropy(points: Tensor, kind: Entropy = "abs") -> Tensor:
    """Entropy in bits of points [*b d], over their coordinates.

        -sum_i p_i log2 p_i      PoinCLIP eq. 6

    Coordinates may be negative and sum to nothing in particular, so eq. 6 has no value as printed. "abs" takes |x_i| as
    they are: on a ball they are small and the entropy grows outwards, as the paper argues. "normalised" (|x| / sum|x|)
    does not depend on the radius; "softmax" falls outwards.
    """
    match kind:
        case "abs":
            p = points.abs()
        case "normalised":
            p = points.abs() / points.abs().sum(-1, keepdim=True)
        case "softmax":
            p = points.softmax(-1)
    return -torch.special.xlogy(p, p).sum(-1) / math.log(2)


def over_captions(values: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Of values [b w], those that `mask` [b w] has: their mean (or sum) in each caption, then the captions' mean.

    A caption without any counts as 0.
    """
    sums = values.masked_fill(~mask, 0).sum(1)
    match reduction:
        case "mean":
            return (sums / mask.sum(1).clamp(min=1)).mean()
        case "sum":
            return sums.mean()
