"""UNCHA: HyCoCLIP with several boxes per image and a learned uncertainty of each. Shapes: m boxes of this rank."""

from functools import partial
from types import MappingProxyType

from torch import Tensor

from trainer.losses.functional import mean_over_pairs
from trainer.losses.uncertainty import calibration, leaky_cone, spread, temperature_factors, uncertainty
from trainer.models.config import UNCHAConfig
from trainer.models.dual_encoder import PAIRS
from trainer.models.hycoclip import relations
from trainer.models.meru import MERU
from trainer.models.points import Points
from trainer.models.terms import Contrast, Entails, Term, energies

BOXES = (("box_image", "box_text"), ("box_text", "box_image"))
CROSS = (("box_image", "text"), ("box_text", "image"))


class UNCHA(MERU):
    """Uncertainty-guided compositional alignment (CVPR 2026, arXiv 2603.22042).

    Boxes near the origin are uncertain and have softer logits. Their energies towards images calibrate the uncertainty.
    """

    config: UNCHAConfig
    temperatures = MappingProxyType(
        {
            "global_logit_scale": "temperature_init",
            "global_local_logit_scale": "temperature_cross_init",
            "local_logit_scale": "temperature_box_init",
        }
    )

    def __init__(self, config: UNCHAConfig) -> None:
        super().__init__(config)
        for name in ("global_local_logit_scale", "local_logit_scale"):
            self.get_parameter(name).requires_grad_(config.use_boxes)

    @property
    def has_per_rank_means(self) -> bool:
        return self.config.box_means == "rank"

    def terms(self) -> list[Term]:
        """The sum of three contrastive losses, and the entailment loss with calibration, as in the released code.

        Contrastive losses: wholes, boxes with phrases, and boxes and phrases with wholes. Entailment: half of each of the
        two means across modalities, a quarter of each within one, and calibration_weight times the calibrations.
        """
        config = self.config
        found = relations(config.eta_inter, config.eta_intra, config.equal_phrase_weight)
        text_image, box, cross_image, cross_text = found
        wholes = Contrast(sides=PAIRS.sides, temperature="global_logit_scale")
        terms = [Term(name="contrastive/global", value=wholes), entailment(text_image, 0.5)]
        if not config.use_boxes:
            return terms
        local = Contrast(sides=BOXES, temperature="local_logit_scale")
        cross = Contrast(
            sides=CROSS,
            temperature="global_local_logit_scale",
            factors=temperature_factors,
            copies=config.candidates == "repeated",
        )
        terms += [Term(name="contrastive/local", value=local), Term(name="contrastive/global_local", value=cross)]
        terms += [entailment(box, 0.5), entailment(cross_image, 0.25), entailment(cross_text, 0.25)]
        for name, entails in (("image", cross_image), ("text", cross_text)):
            value = partial(self.calibration, entails=entails)
            terms.append(Term(name=f"entailment/calibration_{name}", value=value, weight=config.calibration_weight))
        return terms

    def penalty(self, general: Tensor, specific: Tensor, entails: Entails) -> Tensor:
        """Leaky cones, which also act on points inside."""
        return leaky_cone(*self.cone(general, specific), entails.eta, self.config.leak)

    def calibration(self, points: Points, entails: Entails) -> Tensor:
        """Calibration of the uncertainties of the general points to the energies of a relation, and their spread.

        Args:
            points: the lifted points of the batch.
            entails: the relation, whose general points are boxes or phrases.

        Returns:
            A scalar. Energies have no gradient in it.
        """
        name = entails.general
        everything = points.of(name) if self.has_per_rank_means else points.all(name)
        residual = energies(self, points, entails).detach()
        rows = calibration(residual, uncertainty(points.of(name)), self.config.calibration)
        return points.share(name) * mean_over_pairs(rows) + spread(uncertainty(everything))


def entailment(entails: Entails, weight: float) -> Term:
    """The term of a relation."""
    return Term(name=f"entailment/{entails.name}", value=entails, weight=weight)
