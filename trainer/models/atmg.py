"""ATMG: images and captions share a direction, not a place. Shapes: b queries, n candidates, c classes, p prompts."""

import torch
from torch import Tensor

from trainer.batch import Side
from trainer.geometry import lorentz
from trainer.models.cones import TEXT_IMAGE
from trainer.models.config import ATMGConfig, Ranking
from trainer.models.dual_encoder import PAIRS
from trainer.models.meru import MERU
from trainer.models.terms import Entails, Term


class ATMG(MERU):
    """Contrastive loss of exterior angles ("Accept the Modality Gap", CVPR 2024). Experimental.

    A caption should lie between the root and its image: the angle at the caption towards its image is small, and that
    at the image towards its caption is wide. The paper's additional loss, which keeps the midpoint of the captions
    nearer to the root than that of the images, is not in the released training code and not implemented.
    """

    config: ATMGConfig
    is_symmetric = False

    def directed_similarity(self, queries: Tensor, candidates: Tensor, query: Side) -> Tensor:
        """Similarities [b n]: the angles at images towards captions, minus the angles at captions towards images.

        Candidates [p c d] are classes of `lift_prompts`, whose similarity is the mean over prompts.
        """
        if candidates.ndim == 3:
            return torch.stack([self.directed_similarity(queries, prompt, query) for prompt in candidates]).mean(0)
        angles = lorentz.pairwise_exterior_angle(queries, candidates, self.curvature(), self.config.eps)
        return angles if query == "image" else -angles

    def lift_prompts(self, features: Tensor) -> Tensor:
        """Points [p c d] of the prompts [c p d]: a class has no point of its own, its prompts are scored one by one."""
        return self.lift_text(features.transpose(0, 1))

    def scores(self, queries: Tensor, candidates: Tensor, ranking: Ranking, query: Side = "image") -> Tensor:
        """Scores [b n]. "released" takes the angles at the candidates, except for classes, where both are the same."""
        if ranking == "metric" or candidates.ndim == 3:
            return self.directed_similarity(queries, candidates, query)
        return self.directed_similarity(candidates, queries, "image" if query == "text" else "text").mT

    def terms(self) -> list[Term]:
        """The contrastive loss."""
        return [Term(name="contrastive", value=PAIRS)]

    def entailments(self) -> tuple[Entails, ...]:
        """The relation that the evaluation measures. No term names it: the angles of the contrastive loss teach it."""
        return (TEXT_IMAGE,)
