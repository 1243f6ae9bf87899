"""HyCoCLIP. Shapes: b pairs here, m boxes here, n pairs on all ranks, d embedding width."""

import torch
from torch import Tensor

from trainer.batch import LiftedPairs, Losses, Pairs
from trainer.distributed.gather import counts_of_ranks, gather, rank, world_size
from trainer.models.config import HyCoCLIPConfig
from trainer.models.dual_encoder import Entails
from trainer.models.meru import MERU


class HyCoCLIP(MERU):
    """MERU with a box of the image and its phrase, more general than the wholes (Pal et al. 2025, arXiv 2410.06912)."""

    config: HyCoCLIPConfig

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"boxes"}) if self.config.use_boxes else super().needs

    def losses(self, pairs: Pairs) -> Losses:
        """Eq. 6, 11 and 12. Without boxes, MERU's two terms with the aperture scaled.

        Terms of boxes are means over the boxes; where ranks have different numbers of them, over those of all ranks. A
        rank without any adds 0, through the same operations: the others wait for its part in each gather, also going back.
        """
        contrastive, wholes = self.contrast_pairs(pairs)
        image, text = wholes.image, wholes.text
        inter, intra = self.config.eta_inter, self.config.eta_intra
        entailed = {"text_image": self.entail(text, image, inter)}
        if not self.config.use_boxes:
            total = entailed["text_image"]
        else:
            box_image, box_text, box_contrastive, share = self.contrast_boxes(pairs, wholes)
            contrastive = (contrastive + box_contrastive) / 2
            if pairs.box_owner is not None:
                image, text = image.index_select(-2, pairs.box_owner), text.index_select(-2, pairs.box_owner)
            entailed["box_text_image"] = share * self.entail(box_text, box_image, inter)
            entailed["cross_image"] = share * self.entail(box_image, image, intra)
            entailed["cross_text"] = share * self.entail(box_text, text, intra)
            total = torch.stack(list(entailed.values())).sum() / 2
        terms = {"contrastive": contrastive.detach(), "entailment": total.detach(), **self.scalars()}
        terms |= {f"entailment/{name}": value.detach() for name, value in entailed.items()}
        return Losses(loss=contrastive + self.config.entail_weight * total, terms=terms)

    def entailments(self) -> tuple[Entails, ...]:
        inter, intra = self.config.eta_inter, self.config.eta_intra
        whole = (Entails(name="text_image", general="text", specific="image", eta=inter),)
        if not self.config.use_boxes:
            return whole
        return (
            *whole,
            Entails(name="box_text_image", general="box_text", specific="box_image", eta=inter),
            Entails(name="cross_image", general="box_image", specific="image", eta=intra),
            Entails(name="cross_text", general="box_text", specific="text", eta=intra),
        )

    def contrast_boxes(self, pairs: Pairs, wholes: LiftedPairs) -> tuple[Tensor, Tensor, Tensor, float]:
        """Lifted box images and box phrases, their half of the contrastive loss, and the weight of a mean over them.

        The weight is this rank's number of boxes over the ranks' mean number, so that averaged gradients count every box
        alike.
        """
        if pairs.box_image is None or pairs.box_text is None:
            raise ValueError(f"{type(self).__name__} needs a box and its phrase in each pair, or use_boxes=false")
        box_image, box_text = self.lift_image(pairs.box_image), self.lift_text(pairs.box_text)
        m, device = len(pairs.box_image), pairs.box_image.device
        counts = [m] * world_size() if pairs.box_owner is None else counts_of_ranks(m, device)
        own = torch.arange(m, device=device)
        match self.config.box_candidates:
            case "released":
                images, texts = wholes.images, wholes.texts
                targets = (own if pairs.box_owner is None else pairs.box_owner) + rank() * len(pairs.image)
            case "paper":
                images = self.lift_image(gather(pairs.box_image, counts))
                texts = self.lift_text(gather(pairs.box_text, counts))
                targets = own + sum(counts[: rank()])
        share = m * world_size() / max(sum(counts), 1)
        scale = self.logit_scale.exp()
        loss = (self.contrast(box_image, texts, scale, targets) + self.contrast(box_text, images, scale, targets)) / 2
        return box_image, box_text, share * loss, share
