"""PHyCLIP. Shapes: b pairs here, n pairs on all ranks, d embedding width, k factors."""

from torch import Tensor

from trainer.geometry import lorentz, product
from trainer.losses.similarity import Comparison, lorentz_distance
from trainer.models.config import PHyCLIPConfig, Ranking
from trainer.models.dual_encoder import in_float32
from trainer.models.hycoclip import HyCoCLIP


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
