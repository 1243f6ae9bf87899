"""The base class of the hyperbolic models.

Shapes: b pairs, d embedding width, k factors; [*k b d] is [b d], or [k b d/k] in a product of factors. The space has
curvature -c with c = exp(curv).
"""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from trainer.models.cones import Cones
from trainer.models.config import HyperbolicConfig


class Hyperbolic(Cones):
    """A model with entailment cones, a learned curvature, and a learned scale of features per modality.

    `curv`, `visual_alpha` and `textual_alpha` are the logarithms of c and of the scales. The scales start at the
    inverse square root of the width, so that scaled features have an expected norm of 1 (MERU, section 3).
    """

    config: HyperbolicConfig

    def __init__(self, config: HyperbolicConfig, n_factors: int | None = None) -> None:
        """Build the model.

        Args:
            config: settings of the model.
            n_factors: k, the number of factors, each with its own curvature and scales; None: a single space.
        """
        super().__init__(config)
        shape = () if n_factors is None else (n_factors,)
        alpha = -math.log(config.embed_dim // (n_factors or 1)) / 2
        self.curv = nn.Parameter(torch.full(shape, math.log(config.curv_init)), requires_grad=config.curv_learnable)
        self.visual_alpha = nn.Parameter(torch.full(shape, alpha))
        self.textual_alpha = nn.Parameter(torch.full(shape, alpha))

    def start_values(self) -> dict[str, tuple[str, float]]:
        return super().start_values() | {"curv_init": ("curv", math.log(self.config.curv_init))}

    @abstractmethod
    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        """Lift features into the space.

        Args:
            features: those of one modality [b d].
            log_alpha: logarithm of the scale by which features are multiplied first, [] or [k].

        Returns:
            Points [*k b d].
        """

    def lift_image(self, features: Tensor) -> Tensor:
        return self.lift(features, self.visual_alpha)

    def lift_text(self, features: Tensor) -> Tensor:
        return self.lift(features, self.textual_alpha)

    @abstractmethod
    def distance(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Geodesic distances [b n] of lifted points [*k b d] and [*k n d]; in a product, those of `product.combine`."""

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return -self.distance(queries, candidates)

    def radius(self, points: Tensor) -> Tensor:
        """Geodesic distances [b] of points [*k b d] from the origin, in the metric of the space."""
        return self.distance(points, torch.zeros_like(points[..., :1, :])).squeeze(-1)

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        super().clamp_parameters()
        center, log_ratio = math.log(self.config.curv_init), math.log(self.config.curv_max_ratio)
        self.curv.clamp_(center - log_ratio, center + log_ratio)
        self.visual_alpha.clamp_(max=0)
        self.textual_alpha.clamp_(max=0)

    def scalars(self) -> dict[str, Tensor]:
        """The learned scalars to log beside the losses."""
        return super().scalars() | {"curvature": self.curv.exp().detach()}
