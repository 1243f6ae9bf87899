"""PHyCLIP. Shapes: b pairs here, n pairs on all ranks, d embedding width, k factors."""

from dataclasses import dataclass

from torch import Tensor

from common.errors import UserError
from common.load import check_positive
from trainer.blocks import Comparison, lorentz_distance
from trainer.dual_encoder import Ranking, in_float32
from trainer.geometry import lorentz, product
from trainer.models.hycoclip import HyCoCLIP, HyCoCLIPConfig


@dataclass(frozen=True, kw_only=True)
class PHyCLIPConfig(HyCoCLIPConfig):
    """The embedding's width is a product of factors of width `factor_dim`."""

    factor_dim: int = 8  # width of one hyperbolic factor; the space is a product of embed_dim / factor_dim of them
    # distance in the product of factors: l1, the mean of the factors' distances; l2, the root of the mean of their
    # squares
    metric: product.Metric = "l1"
    eps: float = 1e-6  # small number that keeps roots and logarithms finite

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "factor_dim")
        if self.embed_dim % self.factor_dim:
            raise UserError(f"embed_dim is {self.embed_dim}; give a multiple of factor_dim, {self.factor_dim}")


class PHyCLIP(HyCoCLIP):
    """HyCoCLIP on a product of k hyperbolic factors, each with its curvature (PHyCLIP). Lifted points are [k b d/k].

    Alphas begin at factor_dim^-0.5, as released; the paper says 512^-0.5, which leaves factors at a tenth of the radius.
    """

    config: PHyCLIPConfig

    def __init__(self, config: PHyCLIPConfig) -> None:
        super().__init__(config, n_factors=config.embed_dim // config.factor_dim)

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        factors = product.split(in_float32(features), self.config.factor_dim)
        return lorentz.exp_map0(factors * log_alpha.exp()[:, None, None], self.curvature(), self.config.eps)

    def curvature(self) -> Tensor:
        return self.curv.exp()[:, None]

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        apart = lorentz.pairwise_distance(queries, candidates, self.curvature(), self.config.eps)
        return -product.combine(apart, self.config.metric)

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison:
        return lorentz_distance(queries, candidates, self.curvature(), self.config.eps, self.config.metric)

    def scores(self, queries: Tensor, candidates: Tensor, ranking: Ranking) -> Tensor:
        """The released evaluation sums Lorentz inner products over the factors, which is not monotone in eq. 2."""
        match ranking:
            case "metric":
                return self.similarity(queries, candidates)
            case "released":
                return lorentz.pairwise_inner(queries, candidates, self.curvature()).sum(0)
