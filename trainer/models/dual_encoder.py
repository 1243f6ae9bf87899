"""Two towers, their projections into one width, and a temperature: what all the models share.

Shapes: b pairs here, m boxes here, n pairs on all ranks, d embedding width, l tokens. Images are [b 3 h w]; the model
normalises them. A model lifts features into its space and compares them there; its losses are terms over lifted pairs.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn

from trainer.batch import Batch, LiftedPairs, Losses, Pairs
from trainer.data.preprocess import to_pixels
from trainer.distributed.gather import gather, rank, world_size
from trainer.encoders.build import build_image_encoder, build_text_encoder
from trainer.losses import chunked
from trainer.losses.functional import contrastive
from trainer.losses.similarity import Comparison
from trainer.models.config import ModelConfig, Ranking
from trainer.text.syntax import Syntax

Part = Literal["image", "text", "box_image", "box_text", "child", "head", "word_alone", "word"]


@dataclass(frozen=True, kw_only=True)
class Entails:
    """An order that a model learns: `general` entails `specific`, by the model's energy with this `eta`."""

    name: str  # of the loss term
    general: Part
    specific: Part
    eta: float = 1.0  # factor on the aperture of cones


class DualEncoder(nn.Module, ABC):
    """Parameter names are those of the released checkpoints."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.visual = build_image_encoder(config.image)
        self.textual = build_text_encoder(config.text)
        self.visual_proj = projection(int(self.visual.num_features), config.embed_dim)  # type: ignore[arg-type]
        self.textual_proj = projection(self.textual.num_features, config.embed_dim)
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(config.temperature_init)))
        self.register_buffer("pixel_mean", torch.tensor(config.pixel_mean).view(3, 1, 1))
        self.register_buffer("pixel_std", torch.tensor(config.pixel_std).view(3, 1, 1))
        for tower in self.frozen():
            tower.requires_grad_(False)

    def frozen(self) -> list[nn.Module]:
        """The towers that stay as they are."""
        image, text = self.config.image.frozen, self.config.text.frozen
        return [self.visual] * image + [self.textual] * text

    def train(self, mode: bool = True) -> Self:
        """Frozen towers stay in evaluation mode: no drop-out, and no statistics of batches."""
        super().train(mode)
        for tower in self.frozen():
            tower.eval()
        return self

    @abstractmethod
    def lift_image(self, features: Tensor) -> Tensor:
        """Projected features [b d] into the model's space: [b d], of k factors [k b d/k]."""

    @abstractmethod
    def lift_text(self, features: Tensor) -> Tensor:
        """The same for texts."""

    def lift_prompts(self, features: Tensor) -> Tensor:
        """[c p d] of p prompts for each of c classes to one lifted point a class: their mean before the lift."""
        return self.lift_text(features.mean(-2))

    @abstractmethod
    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """[b n] of lifted queries and candidates: larger is more alike. Symmetric, for either may be the images.

        The contrastive loss multiplies it by a logit scale.
        """

    def comparison(self, queries: Tensor, candidates: Tensor) -> Comparison | None:
        """The same similarity, for a loss that never holds all of it. None: that loss holds all of `similarity`."""
        return None

    def scores(self, queries: Tensor, candidates: Tensor, ranking: Ranking) -> Tensor:
        """[b n] to rank candidates by. "metric" is the similarity that was trained; "released" what the authors'
        evaluation ranks by, where that differs."""
        return self.similarity(queries, candidates)

    def entailments(self) -> tuple[Entails, ...]:
        """What entails what."""
        return ()

    def word_points(self, token_ids: Tensor, syntax: Syntax) -> dict[Part, Tensor]:
        """Lifted parts [n d] of `entailments` that are words of captions [b l]; asked where `needs` has "parse"."""
        return {}

    def energy(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """How far `general` is from entailing `specific`, lifted points pair by pair: [*k b], 0 where it does.

        Asked for what `entailments` names.
        """
        raise NotImplementedError(f"{type(self).__name__} has no entailment energy")

    @property
    def needs(self) -> frozenset[str]:
        """What the losses ask of a sample beyond image and caption: "boxes", "parse"."""
        return frozenset({"boxes"}) if self.config.boxes_as_pairs else frozenset()

    @abstractmethod
    def losses(self, pairs: Pairs) -> Losses:
        """What to minimise, and terms by name. Those that end as `metrics.GEOMETRY` says are logged as geometry."""

    def image_features(self, images: Tensor) -> Tensor:
        """[b d] before the lift: what zero-shot classifiers average."""
        pixels = images if images.is_floating_point() else to_pixels(images)
        features: Tensor = self.visual_proj(self.visual((pixels - self.pixel_mean) / self.pixel_std))
        return features

    def text_features(self, token_ids: Tensor) -> Tensor:
        """[b d] before the lift, of token ids [b l]."""
        features: Tensor = self.textual_proj(self.textual(token_ids))
        return features

    def encode_image(self, images: Tensor) -> Tensor:
        return self.lift_image(self.image_features(images))

    def encode_text(self, token_ids: Tensor) -> Tensor:
        return self.lift_text(self.text_features(token_ids))

    def forward(self, batch: Batch) -> Losses:
        """Towers under whatever autocast is on, the rest in float32."""
        pairs = self.features(batch)
        with torch.autocast(batch.images.device.type, enabled=False):
            return self.losses(pairs)

    def features(self, batch: Batch) -> Pairs:
        """LiftedPairs and boxes in one pass of the image tower; texts in two, since phrases are short."""
        captions = self.caption_features(batch)
        if batch.box_images is None or batch.box_token_ids is None:
            if self.config.boxes_as_pairs:
                raise ValueError("boxes_as_pairs needs boxes and their phrases in the batch, or set it to false")
            return Pairs(image=self.image_features(batch.images), syntax=batch.syntax, **captions)
        images = self.image_features(torch.cat([batch.images, batch.box_images]))
        box_text = self.text_features(batch.box_token_ids)
        if self.config.boxes_as_pairs:
            if len(batch.box_images) != len(batch.images):  # ranks would gather different numbers of rows
                raise ValueError(
                    f"boxes_as_pairs takes one box a pair; this batch has {len(batch.box_images)} boxes for "
                    f"{len(batch.images)} pairs"
                )
            captions["text"] = torch.cat([captions["text"], box_text])
            return Pairs(image=images, syntax=batch.syntax, **captions)
        image, box_image = images.split([len(batch.images), len(batch.box_images)])
        boxes = {"box_image": box_image, "box_text": box_text, "box_owner": batch.box_owner}
        return Pairs(image=image, syntax=batch.syntax, **captions, **boxes)

    def caption_features(self, batch: Batch) -> dict[str, Tensor]:
        """The features of `Pairs` that come from the captions."""
        return {"text": self.text_features(batch.token_ids)}

    def contrast(self, queries: Tensor, candidates: Tensor, scale: Tensor, targets: Tensor | None = None) -> Tensor:
        """Contrastive loss of lifted queries [* b d] of this rank against lifted candidates [* n d] of all.

        `scale` [] multiplies their similarity. `targets` [b] say which candidate is a query's own; without them that of
        the same place on this rank.
        """
        if targets is None:
            targets = torch.arange(queries.shape[-2], device=queries.device) + rank() * queries.shape[-2]
        comparison, chunk = self.in_blocks(queries, candidates), self.config.loss_chunk
        if comparison is not None and self.config.loss_kernel == "triton":
            from trainer.losses import fused  # not every machine has Triton

            return fused.contrastive(comparison, scale, targets)
        if comparison is not None and chunk is not None:
            return chunked.contrastive(comparison, scale, targets, chunk, queries.dtype)
        return contrastive(scale * self.similarity(queries, candidates), targets=targets)

    def in_blocks(self, queries: Tensor, candidates: Tensor) -> Comparison | None:
        """The comparison, where the configuration wants it and there is anything to compare."""
        is_wanted = self.config.loss_kernel == "triton" or self.config.loss_chunk is not None
        return self.comparison(queries, candidates) if is_wanted and queries.shape[-2] else None

    def contrast_pairs(self, pairs: Pairs) -> tuple[Tensor, LiftedPairs]:
        """Symmetric contrastive loss of images and captions, and both lifted: MERU, section 3.1.

        Lifting what was gathered costs little, and gives queries and candidates from one computation.
        """
        images, texts = self.lift_image(gather(pairs.image)), self.lift_text(gather(pairs.text))
        image, text = own_rows(images, len(pairs.image)), own_rows(texts, len(pairs.text))
        scale, chunk = self.logit_scale.exp(), self.config.loss_chunk
        comparison = self.in_blocks(images, texts) if world_size() == 1 else None
        if comparison is not None and self.config.loss_kernel == "triton":
            from trainer.losses import fused

            loss = fused.symmetric_contrastive(comparison, scale)
        elif comparison is not None and chunk is not None:
            loss = chunked.symmetric_contrastive(comparison, scale, chunk, images.dtype)
        else:
            loss = (self.contrast(image, texts, scale) + self.contrast(text, images, scale)) / 2
        return loss, LiftedPairs(image=image, text=text, images=images, texts=texts)

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Keep the learned scalars in range. The training loop calls it after each optimizer step."""
        self.logit_scale.clamp_(max=math.log(self.config.max_logit_scale))


def projection(width: int, embed_dim: int) -> nn.Linear:
    layer = nn.Linear(width, embed_dim, bias=False)
    nn.init.normal_(layer.weight, std=width**-0.5)
    return layer


def in_float32(features: Tensor) -> Tensor:
    """Half precision up to float32; float64 stays."""
    return features if features.dtype == torch.float64 else features.float()


def own_rows(gathered: Tensor, n: int) -> Tensor:
    """The rows [* b d] of this rank among those of all ranks [* n d]."""
    return gathered.narrow(-2, rank() * n, n)
