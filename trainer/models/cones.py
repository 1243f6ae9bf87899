"""The base class of models with entailment cones. Shapes: b pairs, d width; [*k b d] as in `dual_encoder`."""

from abc import abstractmethod

from torch import Tensor

from trainer.losses.functional import angle_outside_cone
from trainer.models.config import ConesConfig
from trainer.models.dual_encoder import PAIRS, DualEncoder
from trainer.models.terms import Entails, Term

TEXT_IMAGE = Entails(name="text_image", general="text", specific="image")


class Cones(DualEncoder):
    """A model whose points have entailment cones that open away from the origin, the root of its space."""

    config: ConesConfig

    has_limits = True
    """True: `distance`, `radius` and `cone` stay away from places without a gradient, for losses. Inference sets False."""

    @property
    def eps(self) -> float:
        """The limit of `distance`, `radius` and `cone`, see trainer.geometry."""
        return self.config.eps if self.has_limits else 0.0

    @abstractmethod
    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        """Exterior angles and half-apertures of entailment cones, one value per pair of points.

        Args:
            general: apexes of the cones [*k b d].
            specific: points [*k b d].

        Returns:
            Exterior angles [*k b] at `general` towards `specific`, and half-apertures [*k b] of `general`, in radians.
        """

    def aperture_scale(self, is_within: bool) -> float:
        """The factor on the half-apertures with which the model was trained.

        Args:
            is_within: of relations within a modality; false: of those across both.

        Returns:
            The eta of the first such relation; 1 without one.
        """
        found = (term.value for term in self.terms() if isinstance(term.value, Entails))
        return next((entails.eta for entails in found if entails.is_within == is_within), 1.0)

    def energy(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """Angles [*k b] in radians by which `specific` lies outside the cones at `general`; `eta` scales the cones."""
        return angle_outside_cone(*self.cone(general, specific), eta)

    def margin(self, general: Tensor, specific: Tensor) -> Tensor:
        """Exterior angles minus half-apertures [*k b], in radians; negative inside the cones at `general`."""
        angle, aperture = self.cone(general, specific)
        return angle - aperture

    def terms(self) -> list[Term]:
        """Contrastive loss + entail_weight * entailment loss of captions and images, as MERU (sections 3.1 and 3.2)."""
        return [Term(name="contrastive", value=PAIRS), Term(name="entailment", value=TEXT_IMAGE)]

    def group_weights(self) -> dict[str, float]:
        return {"entailment": self.config.entail_weight}
