"""HyCoCLIP: MERU with boxes and their phrases."""

from trainer.models.config import HyCoCLIPConfig
from trainer.models.dual_encoder import PAIRS
from trainer.models.meru import MERU
from trainer.models.terms import Contrast, Entails, Term

CANDIDATES = {"released": ("text", "image"), "paper": ("box_text", "box_image")}
"""Candidates of boxes and of phrases, by `HyCoCLIPConfig.box_candidates`."""


class HyCoCLIP(MERU):
    """MERU with boxes, which are more general than images, and their phrases (Pal et al. 2025, arXiv 2410.06912).

    As in MERU, a caption entails its image. In addition, a phrase entails its box, a box its image, and a phrase its
    caption.
    """

    config: HyCoCLIPConfig

    def terms(self) -> list[Term]:
        """The contrastive terms of eq. 6 and the entailment terms of eq. 11; eq. 12 adds them up.

        `contrast_terms` and `entail_terms` weight the eight terms; the logged entailments are those without weights.
        Without `use_boxes` these are MERU's two terms with a scaled aperture.
        """
        config = self.config
        weights = [config.contrast_terms.get(name, 1.0) for name in ("image", "text", "box_image", "box_text")]
        half = 0.5 if config.use_boxes else 1.0
        pairs = Contrast(sides=PAIRS.sides, weights=(weights[0], weights[1]))
        text_image, *others = relations(config.eta_inter, config.eta_intra, config.equal_phrase_weight)
        terms = [
            Term(name="contrastive", value=pairs, weight=half),
            self.entailment(text_image, half),
        ]
        if not config.use_boxes:
            return terms
        sides = tuple(zip(("box_image", "box_text"), CANDIDATES[config.box_candidates], strict=True))
        boxes = Contrast(sides=sides, weights=(weights[2], weights[3]))
        return [
            *terms,
            Term(name="contrastive", value=boxes, weight=half),
            *(self.entailment(entails, half) for entails in others),
        ]

    def entailment(self, entails: Entails, weight: float) -> Term:
        """The term of a relation.

        Args:
            entails: the relation; its name is a key of `entail_terms`.
            weight: weight in the group, which is multiplied by that of `entail_terms`.

        Returns:
            The term, named entailment/NAME.
        """
        weight *= self.config.entail_terms.get(entails.name, 1.0)
        return Term(name=f"entailment/{entails.name}", value=entails, weight=weight)


def relations(inter: float, intra: float, equal_weight: float) -> tuple[Entails, ...]:
    """The four relations of eq. 11, with the factors eta across modalities and within one.

    A phrase that is its whole caption is the same point, where the derivative of the angle is largest: `equal_weight`.
    """
    return (
        Entails(name="text_image", general="text", specific="image", eta=inter),
        Entails(name="box_text_image", general="box_text", specific="box_image", eta=inter),
        Entails(name="cross_image", general="box_image", specific="image", eta=intra, is_within=True),
        Entails(
            name="cross_text",
            general="box_text",
            specific="text",
            eta=intra,
            is_within=True,
            equal_weight=equal_weight,
        ),
    )
