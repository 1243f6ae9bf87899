"""What the hyperbolic models share. Shapes: b pairs, d embedding width. Curvature is -c with c = exp(curv)."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from trainer.losses.functional import outside_cone
from trainer.models.config import HyperbolicConfig
from trainer.models.dual_encoder import DualEncoder


class Hyperbolic(DualEncoder):
    """A learned curvature, and a learned scale for each modality that keeps first embeddings near the origin."""

    config: HyperbolicConfig

    def __init__(self, config: HyperbolicConfig, n_factors: int | None = None) -> None:
        super().__init__(config)
        shape = () if n_factors is None else (n_factors,)
        alpha = -math.log(config.embed_dim // (n_factors or 1)) / 2
        self.curv = nn.Parameter(torch.full(shape, math.log(config.curv_init)), requires_grad=config.curv_learnable)
        self.visual_alpha = nn.Parameter(torch.full(shape, alpha))
        self.textual_alpha = nn.Parameter(torch.full(shape, alpha))

    @abstractmethod
    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        """Features [b d], scaled by exp(log_alpha), into the space."""

    def lift_image(self, features: Tensor) -> Tensor:
        return self.lift(features, self.visual_alpha)

    def lift_text(self, features: Tensor) -> Tensor:
        return self.lift(features, self.textual_alpha)

    @abstractmethod
    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        """Exterior angles and half-apertures [*k b] in radians of lifted points, pair by pair."""

    def energy(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """How far `specific` lies outside of the cone of `general`, whose aperture eta scales."""
        return outside_cone(*self.cone(general, specific), eta)

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        super().clamp_parameters()
        centre, reach = math.log(self.config.curv_init), math.log(self.config.curv_max_ratio)
        self.curv.clamp_(centre - reach, centre + reach)
        self.visual_alpha.clamp_(max=0)
        self.textual_alpha.clamp_(max=0)

    def scalars(self) -> dict[str, Tensor]:
        """To log beside the losses."""
        return {"logit_scale": self.logit_scale.exp().detach(), "curvature": self.curv.exp().detach()}
