"""The models: which lift, which similarity, which pairs contrast, which entail.

Shapes: b pairs here, n pairs on all ranks, d embedding width, k factors. Curvature is -c with c = exp(curv).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import UserError
from common.load import check_positive, check_range
from trainer.blocks import Comparison, cosine, lorentz_distance, poincare_distance
from trainer.distributed import counts_of_ranks, gather, rank, world_size
from trainer.dual_encoder import DualEncoder, Entails, Losses, ModelConfig, Pairs, Ranking, Wholes, in_float32
from trainer.geometry import lorentz, poincare, product
from trainer.losses import Entropy, entailment, entropy, regularised_entailment


class CLIP(DualEncoder):
    """Cosine similarity, symmetric contrastive loss (Radford et al. 2021)."""

    def lift_image(self, features: Tensor) -> Tensor:
        return F.normalize(in_float32(features), dim=-1)

    def lift_text(self, features: Tensor) -> Tensor:
        return F.normalize(in_float32(features), dim=-1)

    def lift_prompts(self, features: Tensor) -> Tensor:
        """The mean of directions, not of features."""
        return F.normalize(self.lift_text(features).mean(-2), dim=-1)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return queries @ candidates.T

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison:
        return cosine(queries, candidates)

    def losses(self, pairs: Pairs) -> Losses:
        loss, _ = self.contrast_wholes(pairs)
        return Losses(loss=loss, terms={"contrastive": loss.detach(), "logit_scale": self.logit_scale.exp().detach()})


@dataclass(frozen=True, kw_only=True)
class HyperbolicConfig(ModelConfig):
    """MERU's, and what all hyperbolic models share."""

    curv_init: float = 1.0  # c at the start; the space has curvature -c
    curv_learnable: bool = True  # whether c is learned; false: it stays curv_init
    curv_max_ratio: float = 10.0  # how far c may move: within [curv_init / ratio, curv_init * ratio]
    entail_weight: float = 0.2  # factor of the entailment loss, which is added to the contrastive loss
    min_radius: float = 0.1  # K in the aperture of an entailment cone, arcsin(2 K / (sqrt(c) |apex|))
    eps: float = lorentz.EPS  # small number that keeps roots and logarithms finite

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "curv_init", "min_radius", "eps")
        check_range(self, "eps", least=0, below=1)
        check_range(self, "curv_max_ratio", least=1)
        check_range(self, "entail_weight", least=0, below=math.inf)


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


class MERU(Hyperbolic):
    """Lorentz model; a caption entails its image (Desai et al. 2023, arXiv 2304.09172)."""

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        return lorentz.exp_map0(in_float32(features) * log_alpha.exp(), self.curvature(), self.config.eps)

    def curvature(self) -> Tensor:
        """c, such that it broadcasts with lifted points less their last axis."""
        return self.curv.exp()

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return -lorentz.pairwise_distance(queries, candidates, self.curvature(), self.config.eps)

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison:
        return lorentz_distance(queries, candidates, self.curvature(), self.config.eps)

    def entail(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """How far `specific` lies outside of the cone of `general`, whose aperture eta scales."""
        return entailment(*self.cone(general, specific), eta)

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        c, eps = self.curvature(), self.config.eps
        angle = lorentz.exterior_angle(general, specific, c, eps)
        return angle, lorentz.half_aperture(general, c, self.config.min_radius, eps)

    def entailments(self) -> tuple[Entails, ...]:
        return (Entails(name="text_image", general="text", specific="image"),)

    def losses(self, pairs: Pairs) -> Losses:
        """Contrastive + 0.2 * entailment of image by text (section 3.2)."""
        contrastive, wholes = self.contrast_wholes(pairs)
        entailed = self.entail(general=wholes.text, specific=wholes.image)
        return Losses(
            loss=contrastive + self.config.entail_weight * entailed,
            terms={"contrastive": contrastive.detach(), "entailment": entailed.detach(), **self.scalars()},
        )


@dataclass(frozen=True, kw_only=True)
class HyCoCLIPConfig(HyperbolicConfig):
    """`entail_weight` multiplies half the sum of four terms, as released; the paper writes 0.1 times the sum."""

    use_boxes: bool = True  # whether boxes and their phrases are trained on too; false: whole images and captions alone
    eta_inter: float = 0.7  # factor on the aperture of cones where a text entails an image
    eta_intra: float = 1.2  # factor on the aperture of cones where a box entails its image, or a phrase its caption
    # what box images and box phrases are contrasted with. released: the whole captions and whole images, as in both
    # codes and in HyCoCLIP eq. 6; paper: each other, PHyCLIP eq. 4, which its own code does not do.
    box_candidates: Literal["released", "paper"] = "released"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "eta_inter", "eta_intra", least=0, below=math.inf)
        if self.use_boxes and self.boxes_as_pairs:
            raise UserError(
                "use_boxes and boxes_as_pairs are both true; boxes are general to their wholes or pairs, so set one to false"
            )


class HyCoCLIP(MERU):
    """MERU with a box of the image and its phrase, more general than the wholes (Pal et al. 2025, arXiv 2410.06912)."""

    config: HyCoCLIPConfig

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"boxes"}) if self.config.use_boxes else super().needs

    def losses(self, pairs: Pairs) -> Losses:
        """Eq. 6 and 11. Without boxes, MERU's two terms with the aperture scaled.

        Terms of boxes are means over the boxes; where ranks have different numbers of them, over those of all ranks. A
        rank without any adds 0, through the same operations: the others wait for its part in each gather, also going back.
        """
        contrastive, wholes = self.contrast_wholes(pairs)
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

    def contrast_boxes(self, pairs: Pairs, wholes: Wholes) -> tuple[Tensor, Tensor, Tensor, float]:
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
        loss = (self.contrast(box_image, texts, targets) + self.contrast(box_text, images, targets)) / 2
        return box_image, box_text, share * loss, share


@dataclass(frozen=True, kw_only=True)
class PHyCLIPConfig(HyCoCLIPConfig):
    """The embedding's width is a product of factors of width `factor_dim`."""

    factor_dim: int = 8  # width of one hyperbolic factor; the space is a product of embed_dim / factor_dim of them
    # distance in the product of factors: l1, the mean of the factors' distances; l2, the root of the mean of their
    # squares
    metric: product.Metric = "l1"
    eps: float = 1e-6  # small number that keeps roots and logarithms finite

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "factor_dim")
        if self.embed_dim % self.factor_dim:
            raise UserError(f"embed_dim is {self.embed_dim}; give a multiple of factor_dim, {self.factor_dim}")


class PHyCLIP(HyCoCLIP):
    """HyCoCLIP on a product of k hyperbolic factors, each with its curvature (PHyCLIP). Lifted points are [k b d/k].

    Alphas begin at factor_dim^-0.5, as released; the paper says 512^-0.5, which leaves factors at a tenth of the radius.
    """

    config: PHyCLIPConfig

    def __init__(self, config: PHyCLIPConfig) -> None:
        super().__init__(config, n_factors=config.embed_dim // config.factor_dim)

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        factors = product.split(in_float32(features), self.config.factor_dim)
        return lorentz.exp_map0(factors * log_alpha.exp()[:, None, None], self.curvature(), self.config.eps)

    def curvature(self) -> Tensor:
        return self.curv.exp()[:, None]

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        apart = lorentz.pairwise_distance(queries, candidates, self.curvature(), self.config.eps)
        return -product.combine(apart, self.config.metric)

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison:
        return lorentz_distance(queries, candidates, self.curvature(), self.config.eps, self.config.metric)

    def scores(self, queries: Tensor, candidates: Tensor, ranking: Ranking) -> Tensor:
        """The released evaluation sums Lorentz inner products over the factors, which is not monotone in eq. 2."""
        match ranking:
            case "metric":
                return self.similarity(queries, candidates)
            case "released":
                return lorentz.pairwise_inner(queries, candidates, self.curvature()).sum(0)


@dataclass(frozen=True, kw_only=True)
class PoinCLIPConfig(HyperbolicConfig):
    entail_weight: float = 0.1  # factor of the entailment loss, the paper's lambda
    entail_reward: float = 0.1  # the paper's lambda_reg, from 0 to below 1: at 1 the loss has no floor
    # how a coordinate becomes a probability, of which the entropy is taken: abs, normalised or softmax
    entropy: Entropy = "abs"
    # how features are lifted onto the ball: conformal, the ball's own exponential map; isometric, MERU's seen on the
    # ball
    lift: poincare.Lift = "conformal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "entail_reward", least=0, below=1)  # at 1 and beyond wide angles pay, and nothing holds


class PoinCLIP(Hyperbolic):
    """Poincare ball; of a pair the one with the lower entropy entails the other (PoinCLIP, section 4)."""

    config: PoinCLIPConfig

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        return poincare.exp_map0(in_float32(features) * log_alpha.exp(), self.curv.exp(), self.config.lift)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return -poincare.pairwise_distance(queries, candidates, self.curv.exp(), self.config.eps)

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison:
        return poincare_distance(queries, candidates, self.curv.exp(), self.config.eps)

    def losses(self, pairs: Pairs) -> Losses:
        """Contrastive + lambda * entailment (eq. 9), apex by entropy; at a tie the text is the apex."""
        contrastive, wholes = self.contrast_wholes(pairs)
        image, text = wholes.image, wholes.text
        entailed = regularised_entailment(*self.cone(text, image), self.config.entail_reward)
        return Losses(
            loss=contrastive + self.config.entail_weight * entailed,
            terms={
                "contrastive": contrastive.detach(),
                "entailment": entailed.detach(),
                "image_entails": self.swaps(text, image).float().mean(),
                **self.scalars(),
            },
        )

    @torch.no_grad()
    def swaps(self, general: Tensor, specific: Tensor) -> Tensor:
        """[b] where the entropies say that what is called specific is the more general one."""
        return entropy(specific, self.config.entropy) < entropy(general, self.config.entropy)

    def entailments(self) -> tuple[Entails, ...]:
        """Called text and image; `cone` decides pair by pair which is the apex."""
        return (Entails(name="text_image", general="text", specific="image"),)

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        swapped = self.swaps(general, specific)[:, None]
        apex, point = torch.where(swapped, specific, general), torch.where(swapped, general, specific)
        c, eps = self.curv.exp(), self.config.eps
        aperture = poincare.half_aperture(apex, c, self.config.min_radius, eps)
        return poincare.exterior_angle(apex, point, c, eps), aperture
