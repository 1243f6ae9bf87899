"""PHyCLIP. Shapes: b queries, n candidates, d embedding width, k factors."""

import math

from torch import Tensor, nn

from trainer.batch import Side
from trainer.geometry import lorentz, product
from trainer.losses.similarity import LazySimilarity, lorentz_similarity
from trainer.models.config import PHyCLIPConfig, Ranking
from trainer.models.dual_encoder import at_least_float32
from trainer.models.hycoclip import HyCoCLIP


class PHyCLIP(HyCoCLIP):
    """HyCoCLIP in a product of k hyperbolic factors, each with its own curvature. Lifted points are [k b d/k].

    The scales of features start at factor_dim^-0.5, as in the released code, or with alpha_init=paper at 512^-0.5, which
    is an eighth of that for factors of width 8.
    """

    config: PHyCLIPConfig

    def __init__(self, config: PHyCLIPConfig) -> None:
        super().__init__(config, n_factors=config.embed_dim // config.factor_dim)
        if config.alpha_init == "paper":
            for alpha in (self.visual_alpha, self.textual_alpha):
                nn.init.constant_(alpha, -math.log(config.embed_dim) / 2)

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        factors = product.split(at_least_float32(features), self.config.factor_dim)
        return lorentz.exp_map0(factors * log_alpha.exp()[:, None, None], self.curvature(), self.config.eps)

    def curvature(self) -> Tensor:
        return self.curv.exp()[:, None]

    def distance(self, queries: Tensor, candidates: Tensor) -> Tensor:
        distances = lorentz.pairwise_distance(queries, candidates, self.curvature(), self.eps)
        return product.combine(distances, self.config.metric)

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity:
        return lorentz_similarity(queries, candidates, self.curvature(), self.config.eps, self.config.metric)

    def scores(self, queries: Tensor, candidates: Tensor, ranking: Ranking, query: Side = "image") -> Tensor:
        """Scores [b n]: the similarity, or the sum of Lorentzian inner products over the factors.

        The released evaluation ranks by the sum, which orders candidates differently than the distance of eq. 2.
        """
        match ranking:
            case "metric":
                return self.similarity(queries, candidates)
            case "released":
                # One matrix product over all factors: the k matrices of the factors are never in memory together.
                c = self.curvature()
                left, right = lorentz.inner_coordinates(queries, c, -1), lorentz.inner_coordinates(candidates, c, 1)
                return left.movedim(0, 1).flatten(1) @ right.movedim(0, 1).flatten(1).T
