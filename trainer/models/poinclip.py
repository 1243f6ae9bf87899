"""PoinCLIP (docs/ablations.md). Shapes: b pairs, n candidates, d embedding width."""

import torch
from torch import Tensor

from trainer.geometry import poincare
from trainer.losses.functional import entropy, regularised_entailment
from trainer.losses.similarity import LazySimilarity, poincare_similarity
from trainer.models.cones import TEXT_IMAGE
from trainer.models.config import PoinCLIPConfig
from trainer.models.dual_encoder import at_least_float32
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.points import Points
from trainer.models.terms import Entails


class PoinCLIP(Hyperbolic):
    """Poincaré ball; of caption and image, the one with the lower entropy entails the other (PoinCLIP, section 4).

    The terms are MERU's, but the direction of the relation differs from pair to pair: `cone` selects the apex.
    With order=text, a caption always entails its image (tables 3 and 5); norm and random are our controls.
    """

    config: PoinCLIPConfig
    shares = frozenset({"image_entails"})

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        return poincare.exp_map0(at_least_float32(features) * log_alpha.exp(), self.curv.exp(), self.config.lift)

    def distance(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return poincare.pairwise_distance(queries, candidates, self.curv.exp(), self.eps)

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity:
        return poincare_similarity(queries, candidates, self.curv.exp(), self.config.eps)

    def penalty(self, general: Tensor, specific: Tensor, entails: Entails) -> Tensor:
        """The rows of eq. 9, which rewards wide angles."""
        return regularised_entailment(*self.cone(general, specific), self.config.entail_reward, entails.eta)

    def measures(self, points: Points) -> dict[str, Tensor]:
        swapped = self.is_swapped(*points.pair(TEXT_IMAGE.general, TEXT_IMAGE.specific))
        return {"image_entails": swapped.float().mean(), **self.scalars()}

    @torch.no_grad()
    def is_swapped(self, general: Tensor, specific: Tensor) -> Tensor:
        """[b], True for pairs of points [b d] in which `specific` precedes by the setting `order` and is the apex."""
        match self.config.order:
            case "entropy":
                return entropy(specific, self.config.entropy) < entropy(general, self.config.entropy)
            case "text":
                return torch.zeros(general.shape[:-1], dtype=torch.bool, device=general.device)
            case "norm":
                return specific.norm(dim=-1) < general.norm(dim=-1)
            case "random":  # from the last digits of the points: both callers of a step, and all ranks, draw the same
                return (1e6 * (general - specific).double().sum(-1)).sin() < 0

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        """Exterior angles [b] and half-apertures [b]. The apex is the point that precedes, or `general` if equal."""
        swapped = self.is_swapped(general, specific)[:, None]
        apex, point = torch.where(swapped, specific, general), torch.where(swapped, general, specific)
        c, eps = self.curv.exp(), self.eps
        aperture = poincare.half_aperture(apex, c, self.config.min_radius, eps)
        return poincare.exterior_angle(apex, point, c, eps), aperture
