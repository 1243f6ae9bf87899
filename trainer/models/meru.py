"""MERU. Shapes: b pairs here, n pairs on all ranks, d embedding width."""

from torch import Tensor

from trainer.batch import Losses, Pairs
from trainer.geometry import lorentz
from trainer.losses.functional import over_pairs
from trainer.losses.similarity import Comparison, lorentz_distance
from trainer.models.dual_encoder import Entails, in_float32
from trainer.models.hyperbolic import Hyperbolic


class MERU(Hyperbolic):
    """Lorentz model; a caption entails its image (Desai et al. 2023, arXiv 2304.09172)."""

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        return lorentz.exp_map0(in_float32(features) * log_alpha.exp(), self.curvature(), self.config.eps)

    def curvature(self) -> Tensor:
        """c, such that it broadcasts with lifted points less their last axis."""
        return self.curv.exp()

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return -lorentz.pairwise_distance(queries, candidates, self.curvature(), self.config.eps)

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison:
        return lorentz_distance(queries, candidates, self.curvature(), self.config.eps)

    def entail(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """Mean energy of the pairs."""
        return over_pairs(self.energy(general, specific, eta))

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        c, eps = self.curvature(), self.config.eps
        angle = lorentz.exterior_angle(general, specific, c, eps)
        return angle, lorentz.half_aperture(general, c, self.config.min_radius, eps)

    def entailments(self) -> tuple[Entails, ...]:
        return (Entails(name="text_image", general="text", specific="image"),)

    def losses(self, pairs: Pairs) -> Losses:
        """Contrastive + 0.2 * entailment of image by text (section 3.2)."""
        contrastive, wholes = self.contrast_pairs(pairs)
        entailed = self.entail(general=wholes.text, specific=wholes.image)
        return Losses(
            loss=contrastive + self.config.entail_weight * entailed,
            terms={"contrastive": contrastive.detach(), "entailment": entailed.detach(), **self.scalars()},
        )
