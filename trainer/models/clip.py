"""CLIP. Shapes: b queries, n candidates, c classes, p prompts per class, d embedding width."""

import torch.nn.functional as F
from torch import Tensor

from trainer.losses.similarity import LazySimilarity, cosine_similarity
from trainer.models.dual_encoder import PAIRS, DualEncoder, at_least_float32
from trainer.models.terms import Term


class CLIP(DualEncoder):
    """Cosine similarity and symmetric contrastive loss (Radford et al. 2021)."""

    def lift_image(self, features: Tensor) -> Tensor:
        return F.normalize(at_least_float32(features), dim=-1)

    def lift_prompts(self, features: Tensor) -> Tensor:
        """The normalised mean of the prompts' unit vectors [c d], from features [c p d]."""
        return F.normalize(self.lift_text(features).mean(-2), dim=-1)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return queries @ candidates.T

    def distance(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """1 - cosine."""
        return 1 - self.similarity(queries, candidates)

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity:
        return cosine_similarity(queries, candidates)

    def terms(self) -> list[Term]:
        return [Term(name="contrastive", value=PAIRS)]
