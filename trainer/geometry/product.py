"""Products of hyperbolic factors: k distances into one (PHyCLIP eq. 2)."""

from torch import Tensor

from trainer.geometry.types import Metric


def combine(distances: Tensor, metric: Metric) -> Tensor:
    """Distances [k *] of the factors into one [*]: their mean (l1), or the root of their mean square (l2).

    PHyCLIP's metric is the l1 sum; for the loss it is divided by k (d_avg, eq. 3), so that the temperature does not depend on
    the number of factors. The released code's l2 ablation takes the mean under the root likewise.
    """
    match metric:
        case "l1":
            return distances.mean(0)
        case "l2":
            return distances.square().mean(0).sqrt()


def split(features: Tensor, factor_dim: int) -> Tensor:
    """[b k*d] to [k b d]."""
    return features.unflatten(-1, (-1, factor_dim)).movedim(-2, 0)
