"""PoinCLIP (docs/poincare.md). Shapes: b pairs here, n pairs on all ranks, d embedding width."""

from dataclasses import dataclass

import torch
from torch import Tensor

from common.load import check_range
from trainer.batch import Losses, Pairs
from trainer.blocks import Comparison, poincare_distance
from trainer.dual_encoder import Entails, in_float32
from trainer.geometry import poincare
from trainer.losses import Entropy, entropy, regularised_entailment
from trainer.models.hyperbolic import Hyperbolic, HyperbolicConfig


@dataclass(frozen=True, kw_only=True)
class PoinCLIPConfig(HyperbolicConfig):
    entail_weight: float = 0.1  # factor of the entailment loss, the paper's lambda
    entail_reward: float = 0.1  # the paper's lambda_reg, from 0 to below 1: at 1 the loss has no floor
    # how a coordinate becomes a probability, of which the entropy is taken: abs, normalised or softmax
    entropy: Entropy = "abs"
    # how features are lifted onto the ball: conformal, the ball's own exponential map; isometric, MERU's seen on the
    # ball
    lift: poincare.Lift = "conformal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "entail_reward", least=0, below=1)  # at 1 and beyond wide angles pay, and nothing holds


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
        contrastive, wholes = self.contrast_wholes(pairs)
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
