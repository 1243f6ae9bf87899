"""Agreement of distances of embedded points with those of a tree or of sets.

A tree embeds into hyperbolic space with any distortion above 1 (Sarkar 2011); a Boolean lattice does not, but it embeds
into an l1 product of hyperbolic factors (PHyCLIP, propositions 1 and 2, theorem 2).

Shapes: n points, [n n] symmetric distances, p pairs of points, c objects; any leading axes *.
"""

import torch
from torch import Tensor

from trainer.models.clip import CLIP
from trainer.models.dual_encoder import DualEncoder
from trainer.models.hyperbolic import Hyperbolic


@torch.no_grad()
def pairwise_distances(model: DualEncoder, points: Tensor) -> Tensor:
    """Distances [n n] of lifted points [*k n d] in float64: geodesic ones, angles for CLIP, else Euclidean ones."""
    points = points.double()
    if isinstance(model, Hyperbolic):
        found = model.distance(points, points)
    elif isinstance(model, CLIP):
        found = (points @ points.T).clamp(-1, 1).acos()
    else:
        found = torch.cdist(points, points)
    return found.fill_diagonal_(0)  # rounding, and `eps` of the geometry, keep it from 0


def hamming(sets: Tensor) -> Tensor:
    """Numbers [n n] of objects that only one of two sets has, from masks [n c]."""
    member = sets.double()
    sizes, common = member.sum(1), member @ member.T
    return sizes[:, None] + sizes[None, :] - 2 * common


def agreement(distances: Tensor, reference: Tensor) -> dict[str, float]:
    """Distortion and correlation of distances [n n] against reference distances [n n], over all pairs of points.

    `distortion`: the mean of |s r - 1| over the ratios r of the two (Sala et al. 2018, D_avg), with the scale s of least
    squared error; 0 for an embedding that is isometric up to scale, 1 for a collapse. `worst_distortion`: the largest
    ratio over the smallest one, at least 1. Pairs with a reference of 0 have no ratio. `pearson` and `spearman` are over
    all pairs, and 0 if one side is constant.
    """
    rows, columns = torch.triu_indices(len(distances), len(distances), 1)
    found, wanted = distances[rows, columns].double(), reference[rows, columns].double()
    ratios = (found / wanted)[wanted > 0]
    scale = ratios.sum() / ratios.square().sum().clamp(min=torch.finfo(ratios.dtype).tiny)
    return {
        "distortion": (scale * ratios - 1).abs().mean().item(),
        "worst_distortion": (ratios.max() / ratios.min()).nan_to_num(torch.inf).item() if len(ratios) else torch.nan,
        "pearson": pearson(found, wanted).item(),
        "spearman": pearson(average_ranks(found), average_ranks(wanted)).item(),
    }


def pearson(first: Tensor, second: Tensor) -> Tensor:
    """Pearson's correlation [*] of numbers [* p]; 0 if one side is constant."""
    first, second = (side.double() - side.double().mean(-1, keepdim=True) for side in (first, second))
    spread = first.norm(dim=-1) * second.norm(dim=-1)
    return torch.where(spread > 0, (first * second).sum(-1) / spread, 0.0)


def average_ranks(values: Tensor) -> Tensor:
    """Ranks [p] from 1 of numbers [p] in float64; equal numbers have the mean of their ranks."""
    _, position, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0).double() - (counts - 1) / 2)[position]
