"""Order embeddings with a contrastive loss. Shapes: b queries, n candidates, d embedding width."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hypergrit_common.config import check_range
from trainer.losses.similarity import LazySimilarity, cosine_similarity
from trainer.models.config import ModelConfig
from trainer.models.dual_encoder import PAIRS, DualEncoder, at_least_float32
from trainer.models.points import Points
from trainer.models.terms import Contrast, Entails, Term


@dataclass(frozen=True, kw_only=True)
class OrderConfig(ModelConfig):
    """Settings of order embeddings."""

    # weight of the entailment loss; the contrastive loss has weight 1
    entail_weight: float = 0.2
    # weight of the mean squared norm of the points
    norm_weight: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "entail_weight", "norm_weight", least=0, below=math.inf)


class OrderEmbeddings(DualEncoder):
    """Points in Euclidean space; a general point is below a specific one in every coordinate (arXiv 1511.06361)."""

    config: OrderConfig

    def lift_image(self, features: Tensor) -> Tensor:
        return at_least_float32(features)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Cosines [b n] of the points."""
        return F.normalize(queries, dim=-1) @ F.normalize(candidates, dim=-1).T

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity:
        return cosine_similarity(F.normalize(queries, dim=-1), F.normalize(candidates, dim=-1))

    def energy(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """Energies [b] |max(0, general - specific)|^2      eq. 2, whose y is the general point"""
        return (general - specific).clamp(min=0).square().sum(-1)

    def terms(self) -> list[Term]:
        boxes = Contrast(sides=(("box_image", "text"), ("box_text", "image")))
        return [
            Term(name="contrastive/pairs", value=PAIRS, weight=0.5),
            Term(name="contrastive/boxes", value=boxes, weight=0.5),
            Term(name="entailment/text_image", value=Entails(name="text_image", general="text", specific="image")),
            Term(name="entailment/cross_text", value=Entails(name="cross_text", general="box_text", specific="text")),
            Term(name="norms", value=self.mean_norm),
        ]

    def group_weights(self) -> dict[str, float]:
        return {"entailment": self.config.entail_weight, "norms": self.config.norm_weight}

    def mean_norm(self, points: Points) -> Tensor:
        """Mean squared norm [] of images and captions."""
        return torch.cat([points.of("image"), points.of("text")]).square().sum(-1).mean()
