"""CLIP. Shapes: b pairs here, n pairs on all ranks, d embedding width."""

import torch.nn.functional as F
from torch import Tensor

from trainer.batch import Losses, Pairs
from trainer.losses.similarity import Comparison, cosine
from trainer.models.dual_encoder import DualEncoder, in_float32


class CLIP(DualEncoder):
    """Cosine similarity, symmetric contrastive loss (Radford et al. 2021)."""

    def lift_image(self, features: Tensor) -> Tensor:
        return F.normalize(in_float32(features), dim=-1)

    def lift_text(self, features: Tensor) -> Tensor:
        return F.normalize(in_float32(features), dim=-1)

    def lift_prompts(self, features: Tensor) -> Tensor:
        """The mean of directions, not of features."""
        return F.normalize(self.lift_text(features).mean(-2), dim=-1)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return queries @ candidates.T

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison:
        return cosine(queries, candidates)

    def losses(self, pairs: Pairs) -> Losses:
        loss, _ = self.contrast_pairs(pairs)
        return Losses(loss=loss, terms={"contrastive": loss.detach(), "logit_scale": self.logit_scale.exp().detach()})
