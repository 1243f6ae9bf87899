"""The base class of all models: two towers, their projections to a joint width, and a temperature.

A model projects the towers' outputs to features, lifts the features into its space, and compares lifted points by a
similarity. Its losses are computed from the lifted points of a batch. To add a model, subclass `DualEncoder` or an
existing model, add its settings to `trainer/models/config.py`, and register it in `trainer/models/registry.py`:

- Implement `lift_image`, `lift_text`, `similarity` and `losses`. `contrast_pairs` computes the symmetric contrastive
  loss.
- Implement `lazy_similarity` for large batches, if a formula of `trainer/losses/similarity.py` fits.
- If the model learns that general points entail specific ones, list the relations in `entailments` and implement
  `energy`. The evaluation reports how well `margin` and `radius` tell true pairs from others.
- Extend `needs` if the losses use boxes or parses, `clamp_parameters` if new parameters have a range, and `scores` if
  the evaluation ranks by another number than the similarity.

Shapes: b pairs and m boxes on this rank, n pairs on all ranks, d embedding width, l tokens. Lifted points are [b d], or
[k b d/k] in a product of k factors; [*k b d] stands for both. Images are [b 3 h w].
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from trainer.batch import Batch, LiftedPairs, Losses, Pairs
from trainer.data.preprocess import to_pixels
from trainer.distributed.gather import gather, rank
from trainer.encoders.build import build_image_encoder, build_text_encoder
from trainer.losses.contrast import ContrastiveLoss, chunk_size
from trainer.losses.similarity import LazySimilarity
from trainer.models.config import ModelConfig, Ranking
from trainer.text.syntax import Syntax

Part = Literal["image", "text", "box_image", "box_text", "child", "head", "word_alone", "word"]
"""Name of a set of lifted points in `Entails`.

Images, captions, boxes and their phrases; children and heads of the edges of dependency trees; words without and with
their context.
"""


@dataclass(frozen=True, kw_only=True)
class Entails:
    """An entailment relation that a model learns, such as: a caption (general) entails its image (specific).

    A pair of points satisfies it if `DualEncoder.energy(general, specific, eta)` is 0.
    """

    name: str  # part of the names of loss terms and of evaluation metrics
    general: Part
    specific: Part
    eta: float = 1.0  # factor on the half-apertures of cones


class DualEncoder(nn.Module, ABC):
    """Two towers with projections and a temperature. Parameter names are those of the released checkpoints."""

    shares: ClassVar[frozenset[str]] = frozenset()
    """Names of the terms that are shares of pairs, not losses."""

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
        for tower in self.frozen_towers():
            tower.requires_grad_(False)

    def frozen_towers(self) -> list[nn.Module]:
        """The towers that are not trained."""
        image, text = self.config.image.frozen, self.config.text.frozen
        return [self.visual] * image + [self.textual] * text

    def train(self, mode: bool = True) -> Self:
        """Set the training mode. Frozen towers stay in evaluation mode: no dropout, no updates of batch norms."""
        super().train(mode)
        for tower in self.frozen_towers():
            tower.eval()
        return self

    @abstractmethod
    def lift_image(self, features: Tensor) -> Tensor:
        """Lift projected features [b d] of images or boxes into the model's space: points [*k b d]."""

    @abstractmethod
    def lift_text(self, features: Tensor) -> Tensor:
        """Lift projected features [b d] of captions, phrases or words into the model's space: points [*k b d]."""

    def lift_prompts(self, features: Tensor) -> Tensor:
        """One lifted point [*k c d] per class, from the features [c p d] of p prompts for each of c classes.

        By default, the lift of the mean feature.
        """
        return self.lift_text(features.mean(-2))

    @abstractmethod
    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Similarities [b n] of lifted queries [*k b d] and candidates [*k n d]; larger means more similar.

        It must be symmetric, because images and texts are both queries and candidates. The contrastive loss multiplies
        it by the logit scale.
        """

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity | None:
        """Return the formula of `similarity`, for contrastive losses that never hold the full matrix.

        The default, None, makes the contrastive loss compute the full matrix. A subclass that overrides `similarity`
        must override this method too.
        """
        return None

    def scores(self, queries: Tensor, candidates: Tensor, ranking: Ranking) -> Tensor:
        """Scores [b n] by which the evaluation ranks candidates; larger is better.

        "metric" is the similarity used in training; "released" is the score of the authors' evaluation code, which
        differs for some models.
        """
        return self.similarity(queries, candidates)

    def entailments(self) -> tuple[Entails, ...]:
        """The entailment relations that the model learns."""
        return ()

    def word_points(self, token_ids: Tensor, syntax: Syntax) -> dict[Part, Tensor]:
        """Lifted words [* d] of captions [b l], by part, for each part of `entailments` that consists of words.

        The evaluation calls it for models whose `needs` contain "parse". The points of the two parts of a relation
        match by index.
        """
        return {}

    def energy(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """Energies [*k b] of pairs of lifted points `general` and `specific` [*k b d], element by element.

        The energy is 0 if the general point entails the specific one; otherwise it grows with the violation. `eta` is
        that of `Entails`. Raises NotImplementedError if the model has no `entailments`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no entailment energy")

    def margin(self, general: Tensor, specific: Tensor) -> Tensor:
        """Margins [*k b] by which pairs of lifted points [*k b d] violate entailment; negative for points inside.

        The evaluation ranks true and mismatched pairs by it. By default, the energy, which is 0 for all points inside.
        """
        return self.energy(general, specific)

    def radius(self, points: Tensor) -> Tensor:
        """Distances [b] of lifted points [*k b d] from the root of the space; general points should be nearer.

        By default, the Euclidean norm of the points, of all factors together.
        """
        norms = points.norm(dim=-1)
        return norms if norms.ndim == 1 else norms.norm(dim=0)

    @property
    def needs(self) -> frozenset[str]:
        """Fields of a sample that the losses use in addition to image and caption: "boxes", "parse"."""
        return frozenset({"boxes"}) if self.config.boxes_as_pairs else frozenset()

    @abstractmethod
    def losses(self, pairs: Pairs) -> Losses:
        """Loss of a batch, computed from its features, and detached terms to log, by name.

        Terms whose names end in one of `trainer.metrics.writers.GEOMETRY`, such as "curvature", are logged under
        "geometry/", all others under "loss/".
        """

    def image_features(self, images: Tensor) -> Tensor:
        """Projected features [b d] of images [b 3 h w], before the lift. Images are uint8, or float in [0, 1]."""
        pixels = images if images.is_floating_point() else to_pixels(images)
        features: Tensor = self.visual_proj(self.visual((pixels - self.pixel_mean) / self.pixel_std))
        return features

    def text_features(self, token_ids: Tensor) -> Tensor:
        """Projected features [b d] of token ids [b l], before the lift."""
        features: Tensor = self.textual_proj(self.textual(token_ids))
        return features

    def encode_image(self, images: Tensor) -> Tensor:
        """Lifted points [*k b d] of images [b 3 h w]."""
        return self.lift_image(self.image_features(images))

    def encode_text(self, token_ids: Tensor) -> Tensor:
        """Lifted points [*k b d] of token ids [b l]."""
        return self.lift_text(self.text_features(token_ids))

    def forward(self, batch: Batch) -> Losses:
        """Losses of a batch. Autocast applies to the towers; lifts and losses run without it."""
        pairs = self.features(batch)
        with torch.autocast(batch.images.device.type, enabled=False):
            return self.losses(pairs)

    def features(self, batch: Batch) -> Pairs:
        """Features of a batch, before the lift.

        Images and boxes share one pass of the image tower. Captions and phrases take one pass of the text tower each,
        because phrases are short and would be padded to the length of captions.

        Raises ValueError if `boxes_as_pairs` is true and the batch does not have one box per pair.
        """
        captions = self.caption_features(batch)
        if batch.box_images is None or batch.box_token_ids is None:
            if self.config.boxes_as_pairs:
                raise ValueError(
                    "boxes_as_pairs needs boxes, but the batch has none; train on shards with boxes, or set "
                    "boxes_as_pairs=false"
                )
            return Pairs(image=self.image_features(batch.images), syntax=batch.syntax, **captions)
        images = self.image_features(torch.cat([batch.images, batch.box_images]))
        box_text = self.text_features(batch.box_token_ids)
        if self.config.boxes_as_pairs:
            if len(batch.box_images) != len(batch.images):  # `gather` needs the same number of rows on each rank
                raise ValueError(
                    f"boxes_as_pairs needs one box per pair, but the batch has {len(batch.box_images)} boxes for "
                    f"{len(batch.images)} pairs; set data.boxes=random"
                )
            captions["text"] = torch.cat([captions["text"], box_text])
            return Pairs(image=images, syntax=batch.syntax, **captions)
        image, box_image = images.split([len(batch.images), len(batch.box_images)])
        boxes = {"box_image": box_image, "box_text": box_text, "box_owner": batch.box_owner}
        return Pairs(image=image, syntax=batch.syntax, **captions, **boxes)

    def caption_features(self, batch: Batch) -> dict[str, Tensor]:
        """Features of the captions, by field of `Pairs`."""
        return {"text": self.text_features(batch.token_ids)}

    def contrast_pairs(self, pairs: Pairs, weights: tuple[float, float] = (1.0, 1.0)) -> tuple[Tensor, LiftedPairs]:
        """Symmetric contrastive loss of images and captions (MERU, section 3.1), and the lifted points.

        `weights` are those of images against captions and of captions against images. The candidates are those of all
        ranks. Features are gathered before the lift, so that the queries of this rank are rows of the candidates.
        Lifting the features of the other ranks again costs little.
        """
        all_images, all_texts = self.lift_image(gather(pairs.image)), self.lift_text(gather(pairs.text))
        image, text = rows_of_rank(all_images, len(pairs.image)), rows_of_rank(all_texts, len(pairs.text))
        loss = self.contrastive_loss.symmetric(image, text, all_images, all_texts, self.logit_scale.exp(), weights)
        return loss, LiftedPairs(image=image, text=text, all_images=all_images, all_texts=all_texts)

    @property
    def contrastive_loss(self) -> ContrastiveLoss:
        """The contrastive loss, in the implementation that the settings select."""
        return ContrastiveLoss(
            model=self,
            kernel=self.config.loss_kernel,
            chunk=chunk_size(self.config.loss_chunk, self.logit_scale.device),
        )

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Clamp the learned scalars to their ranges. The training loop calls it after each optimizer step."""
        self.logit_scale.clamp_(max=math.log(self.config.max_logit_scale))


def projection(width: int, embed_dim: int) -> nn.Linear:
    """Linear layer without bias from a tower's width to the joint width."""
    layer = nn.Linear(width, embed_dim, bias=False)
    nn.init.normal_(layer.weight, std=width**-0.5)
    return layer


def at_least_float32(features: Tensor) -> Tensor:
    """Convert half-precision features to float32; float64 is kept."""
    return features if features.dtype == torch.float64 else features.float()


def rows_of_rank(gathered: Tensor, n_rows: int) -> Tensor:
    """The rows [*k b d] of this rank among the gathered rows [*k n d]; each rank has `n_rows`."""
    return gathered.narrow(-2, rank() * n_rows, n_rows)
