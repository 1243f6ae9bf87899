"""MERU. Shapes: b pairs on this rank, n candidates, d embedding width; with k factors (PHyCLIP), points [k b d/k]."""

import torch
from torch import Tensor

from trainer.batch import Losses, Pairs
from trainer.geometry import lorentz
from trainer.losses.functional import mean_over_pairs
from trainer.losses.similarity import LazySimilarity, cosine_similarity, lorentz_similarity
from trainer.models.dual_encoder import Entails, at_least_float32
from trainer.models.hyperbolic import Hyperbolic


class MERU(Hyperbolic):
    """Lorentz model; a caption entails its image (Desai et al. 2023, arXiv 2304.09172)."""

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        return lorentz.exp_map0(at_least_float32(features) * log_alpha.exp(), self.curvature(), self.config.eps)

    def curvature(self) -> Tensor:
        """c, in a shape that broadcasts against the leading axes of lifted points: [], or [k 1] with factors."""
        return self.curv.exp()

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        if self.config.logits == "inner":
            return lorentz.pairwise_inner(queries, candidates, self.curvature())
        return -lorentz.pairwise_distance(queries, candidates, self.curvature(), self.config.eps)

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity:
        c = self.curvature()
        if self.config.logits == "inner":
            left, right = lorentz.inner_coordinates(queries, c, -1), lorentz.inner_coordinates(candidates, c, 1)
            return cosine_similarity(left, right)
        return lorentz_similarity(queries, candidates, c, self.config.eps)

    def radius(self, points: Tensor) -> Tensor:
        if self.config.logits == "inner":  # the similarity is not a distance
            return lorentz.distance(points, torch.zeros_like(points), self.curvature(), self.config.eps)
        return super().radius(points)

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        c, eps = self.curvature(), self.config.eps
        angle = lorentz.exterior_angle(general, specific, c, eps)
        return angle, lorentz.half_aperture(general, c, self.config.min_radius, eps)

    def entailments(self) -> tuple[Entails, ...]:
        return (Entails(name="text_image", general="text", specific="image"),)

    def entailment_loss(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """Mean energy of the pairs of points `general` and `specific` [*k b d]."""
        return mean_over_pairs(self.energy(general, specific, eta))

    def losses(self, pairs: Pairs) -> Losses:
        """Contrastive loss + entail_weight * entailment loss of captions and images (sections 3.1 and 3.2)."""
        contrastive, lifted = self.contrast_pairs(pairs)
        entailment = self.entailment_loss(general=lifted.text, specific=lifted.image)
        return Losses(
            loss=contrastive + self.config.entail_weight * entailment,
            terms={"contrastive": contrastive.detach(), "entailment": entailment.detach(), **self.scalars()},
        )
