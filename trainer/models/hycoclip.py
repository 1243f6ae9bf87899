"""HyCoCLIP. Shapes: b pairs and m boxes on this rank, d embedding width; with k factors (PHyCLIP), points [k b d/k]."""

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.batch import LiftedPairs, Losses, Pairs
from trainer.distributed.gather import counts_of_ranks, gather, rank, world_size
from trainer.models.config import ENTAIL_TERMS, HyCoCLIPConfig
from trainer.models.dual_encoder import Entails
from trainer.models.meru import MERU


class Boxes(NamedTuple):
    """Lifted boxes and phrases of this rank, and their part of the loss."""

    image: Tensor  # [*k m d]
    text: Tensor  # [*k m d]
    contrastive: Tensor  # [], their contrastive loss times `weight`
    weight: float  # weight of this rank's means over boxes: its number of boxes / the mean number of boxes per rank


class HyCoCLIP(MERU):
    """MERU with boxes, which are more general than images, and their phrases (Pal et al. 2025, arXiv 2410.06912).

    As in MERU, a caption entails its image. In addition, a phrase entails its box, a box its image, and a phrase its
    caption.
    """

    config: HyCoCLIPConfig

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"boxes"}) if self.config.use_boxes else super().needs

    def losses(self, pairs: Pairs) -> Losses:
        """Contrastive and entailment losses of pairs and boxes: eq. 6, 11 and 12.

        `contrast_terms` and `entail_terms` weight the eight terms; the logged entailments are those without weights.
        Without `use_boxes` these are MERU's two terms with a scaled aperture. Terms of boxes are means over the boxes
        of all ranks; ranks may have different numbers of boxes. A rank without boxes runs the same operations and adds
        0, because each rank has to take part in each gather, in the forward and in the backward pass.

        Raises ValueError if `use_boxes` is true and the features of boxes or phrases are missing.
        """
        contrastive, lifted = self.contrast_pairs(pairs, self.contrast_weights("image", "text"))
        image, text = lifted.image, lifted.text
        inter, intra = self.config.eta_inter, self.config.eta_intra
        entailments = {"text_image": self.entailment_loss(text, image, inter)}
        weight = {name: self.config.entail_terms.get(name, 1.0) for name in ENTAIL_TERMS}
        if not self.config.use_boxes:
            total = weight["text_image"] * entailments["text_image"]
        else:
            boxes = self.contrast_boxes(pairs, lifted)
            contrastive = (contrastive + boxes.contrastive) / 2
            if pairs.box_owner is not None:
                image, text = image.index_select(-2, pairs.box_owner), text.index_select(-2, pairs.box_owner)
            entailments["box_text_image"] = boxes.weight * self.entailment_loss(boxes.text, boxes.image, inter)
            entailments["cross_image"] = boxes.weight * self.entailment_loss(boxes.image, image, intra)
            entailments["cross_text"] = boxes.weight * self.entailment_loss(boxes.text, text, intra)
            total = torch.stack([weight[name] * value for name, value in entailments.items()]).sum() / 2
        terms = {"contrastive": contrastive.detach(), "entailment": total.detach(), **self.scalars()}
        terms |= {f"entailment/{name}": value.detach() for name, value in entailments.items()}
        return Losses(loss=contrastive + self.config.entail_weight * total, terms=terms)

    def contrast_weights(self, first: str, second: str) -> tuple[float, float]:
        """The weights of two terms of the contrastive loss."""
        weights = self.config.contrast_terms
        return weights.get(first, 1.0), weights.get(second, 1.0)

    def entailments(self) -> tuple[Entails, ...]:
        inter, intra = self.config.eta_inter, self.config.eta_intra
        text_image = Entails(name="text_image", general="text", specific="image", eta=inter)
        if not self.config.use_boxes:
            return (text_image,)
        return (
            text_image,
            Entails(name="box_text_image", general="box_text", specific="box_image", eta=inter),
            Entails(name="cross_image", general="box_image", specific="image", eta=intra),
            Entails(name="cross_text", general="box_text", specific="text", eta=intra),
        )

    def contrast_boxes(self, pairs: Pairs, lifted: LiftedPairs) -> Boxes:
        """Lift boxes and phrases, and compute their contrastive loss.

        The setting `box_candidates` selects the candidates. `Boxes.weight` gives each box of all ranks the same weight
        in the gradients, which are averaged over the ranks.

        Raises ValueError if the features of boxes or phrases are missing.
        """
        if pairs.box_image is None or pairs.box_text is None:
            raise ValueError(
                f"{type(self).__name__} needs boxes and their phrases, but the batch has none; train on shards with boxes, "
                "or set use_boxes=false"
            )
        box_image, box_text = self.lift_image(pairs.box_image), self.lift_text(pairs.box_text)
        m, device = len(pairs.box_image), pairs.box_image.device
        counts = [m] * world_size() if pairs.box_owner is None else counts_of_ranks(m)
        indices = torch.arange(m, device=device)
        match self.config.box_candidates:
            case "released":
                images, texts = lifted.all_images, lifted.all_texts
                targets = (indices if pairs.box_owner is None else pairs.box_owner) + rank() * len(pairs.image)
            case "paper":
                images = self.lift_image(gather(pairs.box_image, counts))
                texts = self.lift_text(gather(pairs.box_text, counts))
                targets = indices + sum(counts[: rank()])
        weight = m * world_size() / max(sum(counts), 1)
        scale = self.logit_scale.exp()
        sides = ((box_image, texts), (box_text, images))
        weights = self.contrast_weights("box_image", "box_text")
        loss = self.contrastive_loss.weighted(sides, scale, weights, targets)
        return Boxes(box_image, box_text, weight * loss, weight)
