"""ARGENT: HyCoCLIP with angles instead of cones. Shapes: b pairs, d embedding width."""

import torch
from torch import Tensor

from trainer.geometry import lorentz
from trainer.losses.functional import huber_angle, log_barrier
from trainer.models.config import ARGENTConfig
from trainer.models.hycoclip import HyCoCLIP
from trainer.models.points import Points
from trainer.models.terms import Entails, Term


class ARGENT(HyCoCLIP):
    """Angles without apertures, and a regulariser of norms (arXiv 2603.23311). Experimental.

    The authors have published no code. The energy and the regulariser are those of a third party's implementation; the
    contrastive loss, the weights and the data are HyCoCLIP's, because the paper's are not known to us.
    """

    config: ARGENTConfig

    def penalty(self, general: Tensor, specific: Tensor, entails: Entails) -> Tensor:
        """Huber loss [b] of the exterior angle. Within a modality, its weight 1 - exp(-d) spares nearly equal points."""
        angle, _ = self.cone(general, specific)
        weight = torch.ones_like(angle)
        if entails.is_within:
            weight = 1 - (-lorentz.distance(general, specific, self.curvature(), self.config.eps)).exp()
        return huber_angle(angle, weight, self.config.huber_delta)

    def margin(self, general: Tensor, specific: Tensor) -> Tensor:
        """Exterior angles [b], by which the evaluation ranks pairs."""
        return self.cone(general, specific)[0]

    def terms(self) -> list[Term]:
        """HyCoCLIP's terms with other energies, and the regulariser."""
        return [*super().terms(), Term(name="norms", value=self.regulariser)]

    def group_weights(self) -> dict[str, float]:
        return super().group_weights() | {"norms": self.config.norm_weight}

    def regulariser(self, points: Points) -> Tensor:
        """Mean [] over the streams of |x|^2 - log|x|, x the space components of the points."""
        names = ("image", "text", "box_image", "box_text")[: 4 if self.config.use_boxes else 2]
        return torch.stack([points.share(name) * log_barrier(points.of(name).norm(dim=-1)) for name in names]).mean()
