"""PoinCLIP (docs/poincare.md). Shapes: b pairs here, n pairs on all ranks, d embedding width."""

import torch
from torch import Tensor

from trainer.batch import Losses, Pairs
from trainer.geometry import poincare
from trainer.losses.functional import entropy, regularised_entailment
from trainer.losses.similarity import Comparison, poincare_distance
from trainer.models.config import PoinCLIPConfig
from trainer.models.dual_encoder import Entails, in_float32
from trainer.models.hyperbolic import Hyperbolic


class PoinCLIP(Hyperbolic):
    """Poincare ball; of a pair the one with the lower entropy entails the other (PoinCLIP, section 4)."""

    config: PoinCLIPConfig

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        return poincare.exp_map0(in_float32(features) * log_alpha.exp(), self.curv.exp(), self.config.lift)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return -poincare.pairwise_distance(queries, candidates, self.curv.exp(), self.config.eps)

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison:
        return poincare_distance(queries, candidates, self.curv.exp(), self.config.eps)

    def losses(self, pairs: Pairs) -> Losses:
        """Contrastive + lambda * entailment (eq. 9), apex by entropy; at a tie the text is the apex."""
        contrastive, wholes = self.contrast_pairs(pairs)
        image, text = wholes.image, wholes.text
        entailed = regularised_entailment(*self.cone(text, image), self.config.entail_reward)
        return Losses(
            loss=contrastive + self.config.entail_weight * entailed,
            terms={
                "contrastive": contrastive.detach(),
                "entailment": entailed.detach(),
                "image_entails": self.swaps(text, image).float().mean(),
                **self.scalars(),
            },
        )

    @torch.no_grad()
    def swaps(self, general: Tensor, specific: Tensor) -> Tensor:
        """[b] where the entropies say that what is called specific is the more general one."""
        return entropy(specific, self.config.entropy) < entropy(general, self.config.entropy)

    def entailments(self) -> tuple[Entails, ...]:
        """Called text and image; `cone` decides pair by pair which is the apex."""
        return (Entails(name="text_image", general="text", specific="image"),)

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        swapped = self.swaps(general, specific)[:, None]
        apex, point = torch.where(swapped, specific, general), torch.where(swapped, general, specific)
        c, eps = self.curv.exp(), self.config.eps
        aperture = poincare.half_aperture(apex, c, self.config.min_radius, eps)
        return poincare.exterior_angle(apex, point, c, eps), aperture
