"""MERU. Shapes: b queries, n candidates, d embedding width; with k factors (PHyCLIP), points are [k b d/k]."""

from torch import Tensor

from trainer.geometry import lorentz
from trainer.losses.similarity import LazySimilarity, cosine_similarity, lorentz_similarity
from trainer.models.dual_encoder import at_least_float32
from trainer.models.hyperbolic import Hyperbolic


class MERU(Hyperbolic):
    """Lorentz model; a caption entails its image (Desai et al. 2023, arXiv 2304.09172)."""

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        return lorentz.exp_map0(at_least_float32(features) * log_alpha.exp(), self.curvature(), self.config.eps)

    def curvature(self) -> Tensor:
        """c; the space has curvature -c.

        Returns:
            A tensor that broadcasts against the leading axes of lifted points: [], or [k 1] with factors.
        """
        return self.curv.exp()

    def distance(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return lorentz.pairwise_distance(queries, candidates, self.curvature(), self.eps)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        if self.config.logits == "inner":
            return lorentz.pairwise_inner(queries, candidates, self.curvature())
        return super().similarity(queries, candidates)

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity:
        c = self.curvature()
        if self.config.logits == "inner":
            left, right = lorentz.inner_coordinates(queries, c, -1), lorentz.inner_coordinates(candidates, c, 1)
            return cosine_similarity(left, right)
        return lorentz_similarity(queries, candidates, c, self.config.eps)

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        c, eps = self.curvature(), self.eps
        angle = lorentz.exterior_angle(general, specific, c, eps)
        return angle, lorentz.half_aperture(general, c, self.config.min_radius, eps)
