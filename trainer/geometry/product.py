"""Products of k hyperbolic factors (PHyCLIP, eq. 2 and 3). Shapes: b points, d width of one factor."""

from torch import Tensor

from trainer.geometry.types import Metric


def combine(distances: Tensor, metric: Metric) -> Tensor:
    """Distances in the product space, from the distances in its factors.

    PHyCLIP's metric is the sum of the distances, but its loss (eq. 3) uses the mean, d_avg of eq. 2, so that the
    temperature does not depend on the number of factors. The released code of the l2 ablation also uses a mean.

    Args:
        distances: those in each factor [k *].
        metric: "l1", the mean of the factors' distances; "l2", the root of their mean square.

    Returns:
        Distances [*].
    """
    match metric:
        case "l1":
            return distances.mean(0)
        case "l2":
            return distances.square().mean(0).sqrt()


def split(features: Tensor, factor_dim: int) -> Tensor:
    """Split features into factors of neighbouring coordinates.

    Args:
        features: [b k*d].
        factor_dim: d, a divisor of the width of the features.

    Returns:
        Features of each factor [k b d].
    """
    return features.unflatten(-1, (-1, factor_dim)).movedim(-2, 0)
