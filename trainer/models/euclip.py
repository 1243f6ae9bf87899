"""EuCLIP, the Euclidean control. Shapes: b queries, n candidates, d embedding width."""

import torch
from torch import Tensor

from trainer.geometry import euclidean
from trainer.losses.similarity import LazySimilarity, cosine_similarity
from trainer.models.cones import Cones
from trainer.models.config import EuCLIPConfig
from trainer.models.dual_encoder import at_least_float32


class EuCLIP(Cones):
    """MERU without curvature: squared Euclidean distances as logits, Euclidean cones (arXiv 2409.13079).

    The logit scale is at least 1, as in the released code: squared distances need a smaller one than cosines.
    """

    config: EuCLIPConfig

    def lift_image(self, features: Tensor) -> Tensor:
        """The features divided by sqrt(d), so that their expected norm is 1 at the start; the scale is not learned."""
        return at_least_float32(features) * self.config.embed_dim**-0.5

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return -euclidean.pairwise_squared_distance(queries, candidates)

    def distance(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return euclidean.pairwise_squared_distance(queries, candidates).sqrt()

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity:
        left, right = euclidean.inner_coordinates(queries, -1), euclidean.inner_coordinates(candidates, 1)
        return cosine_similarity(left, right)

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        eps = self.eps
        angle = euclidean.exterior_angle(general, specific, eps)
        return angle, euclidean.half_aperture(general, self.config.min_radius, eps)

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        super().clamp_parameters()
        self.logit_scale.clamp_(min=0)
