"""Factors of a product of hyperbolic spaces (PHyCLIP, section 4.3 and appendix): norms, and compositions by maximum.

Shapes: n points, k factors, d width of a factor; points are [k n d]. `curvature` is c > 0 of each factor, [k 1].
"""

import torch
from torch import Tensor

from trainer.evaluation.analysis.spaces import Lorentz


def factor_norms(points: Tensor, curvature: Tensor) -> Tensor:
    """Geodesic distances [n k] of points [k n d] from the origins of their factors, the hyperbolic norms of the paper.

    The released code uses |x|, which has the same order within a factor.
    """
    return Lorentz(curvature).radius(points).T


def max_composition(first: Tensor, second: Tensor, curvature: Tensor) -> Tensor:
    """Points [k n d] that have, in each factor, the point of `first` or `second` [k n d] with the larger norm.

    Equal norms select `first`. Its factor norms are the maxima of the two, as in the union of two sets.
    """
    norms = [factor_norms(points, curvature).T[..., None] for points in (first, second)]
    return torch.where(norms[1] > norms[0], second, first)


def overlap(first: Tensor, second: Tensor) -> float:
    """Share of the indices [j] in `first` that are in `second` [j] too."""
    return torch.isin(first, second).double().mean().item()


def percentiles(values: Tensor) -> Tensor:
    """Share [* k] of the other values of a row [* k] that are smaller than each value; 1 for the largest, if alone."""
    k = values.shape[-1]
    return (values[..., None, :] < values[..., :, None]).sum(-1).double() / max(1, k - 1)
