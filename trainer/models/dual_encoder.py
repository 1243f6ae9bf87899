"""The base class of all models: two towers, their projections to a joint width, and temperatures.

A model projects the towers' outputs to features, lifts the features into its space, and compares lifted points by a
similarity. Its loss is a list of weighted terms over named streams of points (`trainer.models.terms`).
docs/add_a_model.md shows how to add one.

Shapes: b pairs and m boxes on this rank, n pairs on all ranks, d embedding width, l tokens. Lifted points are [b d], or
[k b d/k] in a product of k factors; [*k b d] stands for both. Images are [b 3 h w].
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from hypergrit_common.devices import tf32
from trainer.batch import Batch, Losses, Pairs, Side, Stream
from trainer.data.preprocess import to_pixels
from trainer.encoders.build import build_image_encoder, build_text_encoder
from trainer.losses.similarity import LazySimilarity
from trainer.models.config import ModelConfig, Ranking
from trainer.models.points import Points
from trainer.models.terms import Contrast, Entails, Term, gathered_streams, sum_terms
from trainer.text.syntax import Syntax

PAIRS = Contrast(sides=(("image", "text"), ("text", "image")))
"""The symmetric contrastive loss of images and captions (MERU, section 3.1)."""


class DualEncoder(nn.Module, ABC):
    """Two towers with projections and temperatures. Parameter names are those of the released checkpoints."""

    shares: ClassVar[frozenset[str]] = frozenset()
    """Names of the terms that are shares of pairs, not losses."""
    temperatures: ClassVar[Mapping[str, str]] = MappingProxyType({"logit_scale": "temperature_init"})
    """Parameters that are logarithms of inverse temperatures, and the settings with their initial temperatures.

    The first is that of images and captions.
    """
    is_symmetric: ClassVar[bool] = True
    """False if the similarity depends on which side is the query; see `directed_similarity`."""

    logit_scale: nn.Parameter  # of models with a single temperature
    logit_bias: nn.Parameter  # of the sigmoid loss
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.visual = build_image_encoder(config.image)
        self.textual = build_text_encoder(config.text)
        width, bias = config.embed_dim, config.projection_bias
        self.visual_proj = projection(int(self.visual.num_features), width, bias)  # type: ignore[arg-type]
        self.textual_proj = projection(self.textual.num_features, width, bias)
        for name, setting in self.temperatures.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(-math.log(getattr(config, setting)))))
        if config.contrastive == "sigmoid":
            self.logit_bias = nn.Parameter(torch.tensor(config.logit_bias_init))
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

    def lift_text(self, features: Tensor) -> Tensor:
        """Lift projected features [b d] of captions, phrases or words, by default as those of images: points [*k b d]."""
        return self.lift_image(features)

    def lift_prompts(self, features: Tensor) -> Tensor:
        """One lifted point [*k c d] per class, from the features [c p d] of p prompts for each of c classes.

        By default, the lift of the mean feature.
        """
        return self.lift_text(features.mean(-2))

    @abstractmethod
    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Similarities [b n] of lifted queries [*k b d] and candidates [*k n d]; larger means more similar.

        Images and texts are both queries and candidates, so it is symmetric, or `is_symmetric` is False and
        `directed_similarity` is implemented too. The contrastive loss multiplies it by the inverse temperature.
        """

    def directed_similarity(self, queries: Tensor, candidates: Tensor, query: Side) -> Tensor:
        """Similarities [b n] of queries of the modality `query` with candidates of the other one."""
        return self.similarity(queries, candidates)

    def distance(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Distances [b n] of lifted points [*k b d] and [*k n d]. By default, minus the similarity."""
        return -self.similarity(queries, candidates)

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity | None:
        """Return the formula of `similarity`, for contrastive losses that never hold the full matrix.

        The default, None, makes the contrastive loss compute the full matrix. A subclass that overrides `similarity`
        must override this method too.
        """
        return None

    def scores(self, queries: Tensor, candidates: Tensor, ranking: Ranking, query: Side = "image") -> Tensor:
        """Scores [b n] by which the evaluation ranks candidates; larger is better.

        "metric" is the similarity used in training; "released" is the score of the authors' evaluation code, which
        differs for some models. `query` is the modality of the queries.
        """
        return self.directed_similarity(queries, candidates, query)

    @abstractmethod
    def terms(self) -> Sequence[Term]:
        """The terms of the loss, in the order in which they are computed and logged.

        Terms whose names end in one of `trainer.metrics.writers.GEOMETRY`, such as "curvature", are logged under
        "geometry/", all others under "loss/".
        """

    def group_weights(self) -> dict[str, float]:
        """Weights of groups of terms, such as "entailment"; 1 if missing."""
        return {}

    def measures(self, points: Points) -> dict[str, Tensor]:
        """Detached numbers to log beside the loss, by name: the scalars by default."""
        return self.scalars()

    def scalars(self) -> dict[str, Tensor]:
        """The learned scalars to log, by name."""
        bias = {"logit_bias": self.logit_bias.detach()} if self.config.contrastive == "sigmoid" else {}
        return {name: self.scale(name).detach() for name in self.temperatures} | bias

    def entailments(self) -> tuple[Entails, ...]:
        """The entailment relations that the model learns. By default, those among its terms."""
        return tuple(term.value for term in self.terms() if isinstance(term.value, Entails))

    def word_points(self, token_ids: Tensor, syntax: Syntax) -> dict[str, Tensor]:
        """Lifted words [* d] of captions [b l], by name, for each name in `entailments` that stands for words.

        The evaluation calls it for models whose `needs` contain "parse". The points of the two sides of a relation
        match by index.
        """
        return {}

    def energy(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """Energies [*k b] of pairs of lifted points `general` and `specific` [*k b d], element by element.

        The energy is 0 if the general point entails the specific one; otherwise it grows with the violation. `eta` is
        that of `Entails`. Raises NotImplementedError if the model has no `entailments`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no entailment energy")

    def penalty(self, general: Tensor, specific: Tensor, entails: Entails) -> Tensor:
        """Numbers [*k b] whose mean over the pairs of a relation is minimised. By default, the energy.

        They differ from the energy if the loss also acts on pairs that satisfy the relation.
        """
        return self.energy(general, specific, entails.eta)

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

    @property
    def has_per_rank_means(self) -> bool:
        """True if means over boxes weigh each rank the same, instead of each box."""
        return False

    def losses(self, pairs: Pairs) -> Losses:
        """Loss of a batch, computed from its features, with its terms, energies and lifted points. Collective.

        Terms of boxes are means over the boxes of all ranks; ranks may have different numbers of boxes. A rank without
        boxes runs the same operations and adds 0, because each rank has to take part in each gather, in the forward
        and in the backward pass. Raises ValueError if a stream is missing.
        """
        lifts: dict[Side, Callable[[Tensor], Tensor]] = {"image": self.lift_image, "text": self.lift_text}
        points, terms = Points(pairs=pairs, lifts=lifts, per_rank=self.has_per_rank_means), self.terms()
        points.gather(*gathered_streams(terms, self.is_symmetric))
        return sum_terms(self, points, terms, self.group_weights())

    def image_states(self, images: Tensor) -> Tensor:
        """Output [b w] of the image tower, before the projection.

        Images [b 3 h w] are uint8, or float in [0, 1]. A tower over cached features (trainer.encoders.cached) also takes
        those [b f].
        """
        states: Tensor = self.visual(self.normalised(images) if images.ndim > 2 else images)
        return states

    def image_features(self, images: Tensor) -> Tensor:
        """Projected features [b d] of images, before the lift."""
        features: Tensor = self.visual_proj(self.image_states(images))
        return features

    def normalised(self, images: Tensor) -> Tensor:
        """Pixels [b 3 h w] minus the mean of the training, over its deviation, in the tower's number format."""
        pixels = images if images.is_floating_point() else to_pixels(images)
        return to_autocast((pixels - self.pixel_mean) / self.pixel_std)

    def text_features(self, token_ids: Tensor, packed: Tensor | None = None) -> Tensor:
        """Projected features [b d] of token ids [b l], before the lift. `packed` as in `Batch`."""
        arguments = () if packed is None or not len(packed) else (None, packed)
        features: Tensor = self.textual_proj(self.textual(token_ids, *arguments))
        return features

    def encode_image(self, images: Tensor) -> Tensor:
        """Lifted points [*k b d] of images [b 3 h w]."""
        return self.lift_image(self.image_features(images))

    def encode_text(self, token_ids: Tensor) -> Tensor:
        """Lifted points [*k b d] of token ids [b l]."""
        return self.lift_text(self.text_features(token_ids))

    def forward(self, batch: Batch) -> Losses:
        """Losses of a batch. Autocast and TF32 apply to the towers; lifts and losses run without them."""
        pairs = self.features(batch)
        with torch.autocast(batch.images.device.type, enabled=False), tf32(False):
            return self.losses(pairs)

    def features(self, batch: Batch) -> Pairs:
        """Features of a batch, before the lift.

        Images and boxes share one pass of the image tower. Captions and phrases take one pass of the text tower each,
        because phrases are short and would be padded to the length of captions.

        Raises ValueError if `boxes_as_pairs` is true and the batch does not have one box per pair.
        """
        captions: dict[str, Any] = self.caption_features(batch)
        captions |= {"syntax": batch.syntax, "more": {name: self.stream_features(s) for name, s in batch.more.items()}}
        captions["counts"] = batch.counts
        if batch.box_images is None or batch.box_token_ids is None:
            if self.config.boxes_as_pairs:
                raise ValueError(
                    "boxes_as_pairs needs boxes, but the batch has none; train on shards with boxes, or set "
                    "boxes_as_pairs=false"
                )
            return Pairs(image=self.image_features(batch.images), **captions)
        pixels = [batch.images, batch.box_images]
        if batch.images.dtype == torch.float16:  # features, which autocast to bf16 refuses to join
            pixels = [part.float() for part in pixels]
        images = self.image_features(torch.cat(pixels))
        box_text = self.text_features(batch.box_token_ids, batch.box_packed)
        if self.config.boxes_as_pairs:
            if len(batch.box_images) != len(batch.images):  # `gather` needs the same number of rows on each rank
                raise ValueError(
                    f"boxes_as_pairs needs one box per pair, but the batch has {len(batch.box_images)} boxes for "
                    f"{len(batch.images)} pairs; set data.boxes=random"
                )
            captions["text"] = torch.cat([captions["text"], box_text])
            return Pairs(image=images, **captions)
        image, box_image = images.split([len(batch.images), len(batch.box_images)])
        return Pairs(
            image=image,
            **captions,
            box_image=box_image,
            box_text=box_text,
            box_owner=batch.box_owner,
            box_equal=batch.box_equal,
        )

    def stream_features(self, stream: Stream) -> Stream:
        """Features of a stream of images or token ids."""
        encode = self.image_features if stream.side == "image" else self.text_features
        return stream._replace(rows=encode(stream.rows))

    def caption_features(self, batch: Batch) -> dict[str, Tensor]:
        """Features of the captions, by field of `Pairs`."""
        return {"text": self.text_features(batch.token_ids, batch.packed)}

    def scale(self, temperature: str) -> Tensor:
        """The inverse [] of a temperature, named by its parameter."""
        parameter: Tensor = getattr(self, temperature)
        return parameter.exp()

    def pair_scale(self) -> Tensor:
        """The inverse temperature [] of images and captions."""
        return self.scale(next(iter(self.temperatures)))

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Clamp the learned scalars to their ranges. The training loop calls it after each optimizer step."""
        for name in self.temperatures:
            self.get_parameter(name).clamp_(max=math.log(self.config.max_logit_scale))


def projection(width: int, embed_dim: int, bias: bool = False) -> nn.Linear:
    """Linear layer from a tower's width to the joint width. Its bias is 0 at first."""
    layer = nn.Linear(width, embed_dim, bias=bias)
    nn.init.normal_(layer.weight, std=width**-0.5)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def to_autocast(values: Tensor) -> Tensor:
    """Convert float32 values to the number format of autocast, if it is on, as the first operation of a tower would."""
    kind = values.device.type
    if values.dtype != torch.float32 or kind == "meta" or not torch.is_autocast_enabled(kind):
        return values
    return values.to(torch.get_autocast_dtype(kind))


def at_least_float32(features: Tensor) -> Tensor:
    """Convert half-precision features to float32; float64 is kept."""
    return features if features.dtype == torch.float64 else features.float()
