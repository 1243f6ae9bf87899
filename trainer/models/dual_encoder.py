"""The base class of all models: two towers, their projections to a joint width, and temperatures.

A model projects the towers' outputs to features, lifts the features into its space, and compares lifted points by a
similarity. Its loss is a list of weighted terms over named streams of points (`trainer.models.terms`).
docs/extending.md shows how to add one.

Shapes: b pairs and m boxes on this rank, n pairs on all ranks, d embedding width, l tokens. Lifted points are [b d], or
[k b d/k] in a product of k factors; [*k b d] stands for both. Images are [b 3 h w].
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from hypergrit_common.devices import tf32
from trainer.batch import Batch, Losses, Side, Stream
from trainer.data.preprocess import to_pixels
from trainer.data.text_streams import STREAMS
from trainer.distributed.gather import counts_of_ranks
from trainer.encoders.build import build_image_encoder, build_text_encoder
from trainer.losses.similarity import LazySimilarity
from trainer.models.config import ModelConfig, Ranking
from trainer.models.points import Points
from trainer.models.schedules import courses_of, values_at, watched, with_values
from trainer.models.terms import Contrast, Entails, Term, gathered_streams, streams_of, sum_terms
from trainer.text.syntax import Syntax

PAIRS = Contrast(sides=(("image", "text"), ("text", "image")))
"""The symmetric contrastive loss of images and captions (MERU, section 3.1)."""

BOX_NEEDS = {"box_image": "boxes", "box_text": "boxes"}
"""What a model needs for a stream; any other stream has the name of the need."""


class DualEncoder(nn.Module, ABC):
    """Two towers with projections and temperatures. Parameter names are those of the released checkpoints.

    Args:
        config: settings of the model. A subclass annotates `config` with their class.
    """

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
        self.config, self.given, self.courses = config, config, courses_of(config)
        self.step_number, self.unread, self.scheduled = 0, set[str](), dict[str, float]()
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

    def start_values(self) -> dict[str, tuple[str, float]]:
        """The learned scalars that start at the value of a setting.

        Returns:
            Setting -> (name of the parameter, its present value), such as curv_init -> ("curv", log of curv_init).
        """
        return {key: (name, -math.log(getattr(self.config, key))) for name, key in self.temperatures.items()}

    @torch.no_grad()
    def begin_step(self, step: int) -> None:
        """Set what changes with the step. The training calls it before each step, and after the last one.

        By default, `config` gets the values of `model.schedules`. A learned scalar whose setting has a course is set, and
        not learned. A model overrides it to change values of its own, and calls that of its base class first.

        Args:
            step: number of completed steps.
        """
        self.step_number = step
        if not self.courses:
            return
        self.scheduled = values_at(self.courses, step)
        self.config = with_values(self.given, self.scheduled)
        self.unread = set() if step else {name.partition(".")[0] for name in self.courses}
        if self.unread:
            self.config = watched(self.config, self.unread)
        for setting, (name, value) in self.start_values().items():
            if setting in self.courses:
                self.get_parameter(name).requires_grad_(False).fill_(value)

    def frozen_towers(self) -> list[nn.Module]:
        """The towers that are not trained."""
        image, text = self.config.image.frozen, self.config.text.frozen
        return [self.visual] * image + [self.textual] * text

    def train(self, mode: bool = True) -> Self:
        """Set the training mode. Frozen towers stay in evaluation mode: no dropout, no updates of batch norms.

        Args:
            mode: True for training, False for evaluation.

        Returns:
            The model.
        """
        super().train(mode)
        for tower in self.frozen_towers():
            tower.eval()
        return self

    @abstractmethod
    def lift_image(self, features: Tensor) -> Tensor:
        """Lift projected features of images or boxes into the model's space.

        Args:
            features: output of the projection [b d], in half precision under autocast.

        Returns:
            Points [*k b d], in float32 or float64.
        """

    def lift_text(self, features: Tensor) -> Tensor:
        """Lift projected features of captions, phrases or words, by default as those of images.

        Args:
            features: output of the projection [b d]; for words [b w d].

        Returns:
            Points [*k b d], or [b w d].
        """
        return self.lift_image(features)

    def lift_prompts(self, features: Tensor) -> Tensor:
        """Lift the features of prompts, such as "a photo of a cat", to one point per class.

        By default, the lift of the mean feature.

        Args:
            features: those of p prompts for each of c classes [c p d].

        Returns:
            Points [*k c d], which `directed_similarity` and `scores` take as candidates.
        """
        return self.lift_text(features.mean(-2))

    @abstractmethod
    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Compare lifted points; larger means more similar.

        Images and texts are both queries and candidates, so it is symmetric, or `is_symmetric` is False and
        `directed_similarity` is implemented too. The contrastive loss multiplies it by the inverse temperature.

        Args:
            queries: points [*k b d].
            candidates: points [*k n d].

        Returns:
            Similarities [b n].
        """

    def directed_similarity(self, queries: Tensor, candidates: Tensor, query: Side) -> Tensor:
        """Compare lifted points of different modalities. By default, `similarity`, for which the roles are the same.

        Args:
            queries: points [*k b d] of the modality `query`.
            candidates: points [*k n d] of the other one.
            query: "image" or "text".

        Returns:
            Similarities [b n].
        """
        return self.similarity(queries, candidates)

    def distance(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Distances of lifted points in the model's space. By default, minus the similarity.

        Args:
            queries: points [*k b d].
            candidates: points [*k n d].

        Returns:
            Distances [b n].
        """
        return -self.similarity(queries, candidates)

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity | None:
        """Return the formula of `similarity`, for contrastive losses that never hold the full matrix.

        The default, None, makes the contrastive loss compute the full matrix. A subclass that overrides `similarity`
        must override this method too.

        Args:
            queries: points [*k b d], at least one.
            candidates: points [*k n d].

        Returns:
            A similarity whose blocks are rows of `similarity(queries, candidates)`, or None.
        """
        return None

    def scores(self, queries: Tensor, candidates: Tensor, ranking: Ranking, query: Side = "image") -> Tensor:
        """Scores by which the evaluation ranks candidates; larger is better.

        Args:
            queries: points [*k b d].
            candidates: points [*k n d] of the other modality, or classes of `lift_prompts`.
            ranking: "metric", the similarity used in training; "released", the score of the authors' evaluation code,
                which differs for some models. By default both are `directed_similarity`.
            query: modality of the queries, "image" or "text".

        Returns:
            Scores [b n].
        """
        return self.directed_similarity(queries, candidates, query)

    @abstractmethod
    def terms(self) -> Sequence[Term]:
        """The terms of the loss.

        Terms whose names end in one of `trainer.training.writers.GEOMETRY`, such as "curvature", are logged under
        "geometry/", all others under "loss/".

        Returns:
            The terms in the order in which they are computed and logged.
        """

    def group_weights(self) -> dict[str, float]:
        """Weights of groups of terms in the loss.

        Returns:
            Weights by the name of the group, such as "entailment"; 1 if missing. Groups of weight 0 are only logged.
        """
        return {}

    def measures(self, points: Points) -> dict[str, Tensor]:
        """Numbers to log beside the loss: the scalars by default.

        Args:
            points: the lifted points of the batch.

        Returns:
            Detached numbers [], or one per factor [k], by name.
        """
        return self.scalars()

    def scalars(self) -> dict[str, Tensor]:
        """The learned scalars to log.

        Returns:
            Detached numbers [], or one per factor [k], by name: those of `temperatures` are inverse temperatures.
        """
        bias = {"logit_bias": self.logit_bias.detach()} if self.config.contrastive == "sigmoid" else {}
        return {name: self.scale(name).detach() for name in self.temperatures} | bias

    def entailments(self) -> tuple[Entails, ...]:
        """The entailment relations that the model learns, which the evaluation measures.

        Returns:
            The relations; by default, those among its terms.
        """
        return tuple(term.value for term in self.terms() if isinstance(term.value, Entails))

    def word_points(self, token_ids: Tensor, syntax: Syntax) -> dict[str, Tensor]:
        """Lifted words of captions, for each name in `entailments` that stands for words.

        The evaluation calls it for models whose `needs` contain "parse".

        Args:
            token_ids: captions [b l].
            syntax: their parses.

        Returns:
            Points [* d] by name. Those of the two sides of a relation match by index.
        """
        return {}

    def energy(self, general: Tensor, specific: Tensor, eta: float = 1.0) -> Tensor:
        """Energies of pairs of lifted points, element by element: 0 if the general point entails the specific one.

        Otherwise the energy grows with the violation; with entailment cones it is an angle in radians.

        Args:
            general: points [*k b d].
            specific: points [*k b d].
            eta: factor of the half-apertures of cones, that of `Entails`.

        Returns:
            Energies [*k b].

        Raises:
            NotImplementedError: the model has no `entailments`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no entailment energy")

    def penalty(self, general: Tensor, specific: Tensor, entails: Entails) -> Tensor:
        """Numbers whose mean over the pairs of a relation is minimised. By default, the energy.

        They differ from the energy if the loss also acts on pairs that satisfy the relation.

        Args:
            general: points [*k b d].
            specific: points [*k b d].
            entails: the relation.

        Returns:
            Penalties [*k b], one per pair; the loss takes their mean.
        """
        return self.energy(general, specific, entails.eta)

    def margin(self, general: Tensor, specific: Tensor) -> Tensor:
        """Margins by which pairs of lifted points violate entailment; negative for points inside.

        The evaluation ranks true and mismatched pairs by it. By default, the energy, which is 0 for all points inside.

        Args:
            general: points [*k b d].
            specific: points [*k b d].

        Returns:
            Margins [*k b].
        """
        return self.energy(general, specific)

    def radius(self, points: Tensor) -> Tensor:
        """Distances of lifted points from the root of the space; general points should be nearer.

        By default, the Euclidean norm of the points, of all factors together.

        Args:
            points: [*k b d].

        Returns:
            Distances [b].
        """
        norms = points.norm(dim=-1)
        return norms if norms.ndim == 1 else norms.norm(dim=0)

    @property
    def needs(self) -> frozenset[str]:
        """What the losses use besides images and captions: "boxes", "parse", and names of streams of texts.

        By default, the boxes and the streams of `trainer.data.text_streams.STREAMS` that the terms name; a model adds to
        them what its functions use. With "pairs", samples without boxes are used too.
        """
        found = {BOX_NEEDS.get(name, name) for name in streams_of(self.terms())} & {"boxes", *STREAMS}
        return frozenset(found | {"boxes", "pairs"} if self.config.boxes_as_pairs else found)

    @property
    def has_per_rank_means(self) -> bool:
        """True if means over boxes weigh each rank the same, instead of each box."""
        return False

    def losses(self, batch: Batch) -> Losses:
        """Loss of a batch, computed from its features. Collective.

        Terms of boxes are means over the boxes of all ranks; ranks may have different numbers of boxes. A rank without
        boxes runs the same operations and adds 0, because each rank has to take part in each gather, in the forward and
        in the backward pass.

        Args:
            batch: its features before the lift, such as those of `features`.

        Returns:
            The loss [], with its terms, energies and lifted points.

        Raises:
            ValueError: a term names a stream that the batch lacks.
        """
        lifts: dict[Side, Callable[[Tensor], Tensor]] = {"image": self.lift_image, "text": self.lift_text}
        points, terms = Points(batch=batch, lifts=lifts, per_rank=self.has_per_rank_means), self.terms()
        points.gather(*gathered_streams(terms, self.is_symmetric))
        return sum_terms(self, points, terms, self.group_weights())

    def image_states(self, images: Tensor) -> Tensor:
        """Output of the image tower, before the projection.

        Args:
            images: [b 3 h w], uint8, or float in [0, 1]. A tower over cached features (trainer.encoders.cached) also
                takes those [b f].

        Returns:
            States [b w] of the tower's width w.
        """
        states: Tensor = self.visual(self.normalised(images) if images.ndim == 4 else images)
        return states

    def image_features(self, images: Tensor) -> Tensor:
        """Projected features of images, before the lift.

        Args:
            images: as in `image_states`.

        Returns:
            Features [b d].
        """
        features: Tensor = self.visual_proj(self.image_states(images))
        return features

    def normalised(self, images: Tensor) -> Tensor:
        """Pixels minus the mean of the training, over its deviation.

        Args:
            images: [b 3 h w], uint8, or float in [0, 1].

        Returns:
            Pixels [b 3 h w] in the number format of the image tower.
        """
        pixels = images if images.is_floating_point() else to_pixels(images)
        return to_autocast((pixels - self.pixel_mean) / self.pixel_std)

    def text_features(self, token_ids: Tensor, packed: Tensor | None = None) -> Tensor:
        """Projected features of texts, before the lift.

        Args:
            token_ids: texts [b l]. A tower over cached features also takes those [b f].
            packed: places in the flat `token_ids` of the tokens that are no padding [t], as in `Batch`; None: not
                packed.

        Returns:
            Features [b d].
        """
        arguments = () if packed is None or not len(packed) else (None, packed)
        features: Tensor = self.textual_proj(self.textual(token_ids, *arguments))
        return features

    def encode_image(self, images: Tensor) -> Tensor:
        """Lifted points of images.

        Args:
            images: [b 3 h w], uint8, or float in [0, 1].

        Returns:
            Points [*k b d].
        """
        return self.lift_image(self.image_features(images))

    def encode_text(self, token_ids: Tensor) -> Tensor:
        """Lifted points of texts.

        Args:
            token_ids: texts [b l] of the model's tokenizer.

        Returns:
            Points [*k b d].
        """
        return self.lift_text(self.text_features(token_ids))

    def forward(self, batch: Batch) -> Losses:
        """Losses of a batch. Autocast and TF32 apply to the towers; lifts and losses run without them. Collective.

        Args:
            batch: has the streams that `needs` names.

        Returns:
            The loss [], with its terms, energies and lifted points.

        Raises:
            ValueError: the batch lacks something that the model needs.
        """
        found = replace(self.features(batch), step=self.step_number)
        # Not compiled while it is observed what the loss reads: `losses` of the object may be compiled.
        losses = partial(type(self).losses, self) if self.unread else self.losses
        with torch.autocast(batch["image"].rows.device.type, enabled=False), tf32(False):
            return losses(found)

    def features(self, batch: Batch, encode_images: Callable[[Tensor], Tensor] | None = None) -> Batch:
        """Features of the streams of a batch, before the lift.

        All images, such as boxes, share one pass of the image tower. Each stream of texts takes one pass of the text tower,
        because phrases are short and would be padded to the length of captions.

        Args:
            batch: images, token ids, and whatever else the model needs.
            encode_images: maps images to features [* d]; None: `image_features`.

        Returns:
            The batch with features [b d] of images and captions and [m d] of others. With `boxes_as_pairs`, boxes are m
            more pairs [b+m d]; ranks may have different numbers of them. Collective if `batch.counts` lacks these.

        Raises:
            ValueError: `boxes_as_pairs` is true, but the batch has no boxes.
        """
        encode_images, found = encode_images or self.image_features, dict[str, Stream]()
        images = {name: stream for name, stream in batch.streams.items() if stream.side == "image"}
        for name, stream in batch.streams.items():  # their order is that of random numbers, such as those of dropout
            if stream.side == "text":
                found |= self.text_streams(name, stream)
            elif name not in found:
                parts = [part.rows for part in images.values()]
                if len(parts) > 1 and parts[0].dtype == torch.float16:  # autocast to bf16 refuses to join features
                    parts = [part.float() for part in parts]
                rows = encode_images(parts[0] if len(parts) == 1 else torch.cat(parts)).split([*map(len, parts)])
                found |= {key: images[key]._replace(rows=part) for key, part in zip(images, rows, strict=True)}
        batch = replace(batch, streams=found)
        return boxes_as_pairs(batch) if self.config.boxes_as_pairs else batch

    def text_streams(self, name: str, stream: Stream) -> dict[str, Stream]:
        """Features of a stream of texts. A model that needs more than a vector per text overrides it.

        Args:
            name: of the stream, such as "text".
            stream: token ids [m l]. Equal texts may be one row, which passes the tower once.

        Returns:
            By name, the stream with features [m d], and others that the model makes of it.
        """
        rows = self.text_features(stream.rows, stream.packed)
        return {name: stream._replace(rows=rows if stream.place is None else rows[stream.place], place=None)}

    def scale(self, temperature: str) -> Tensor:
        """The inverse of a temperature, by which the contrastive loss multiplies similarities.

        Args:
            temperature: name of its parameter, a key of `temperatures`.

        Returns:
            A scalar above 0, at most `max_logit_scale` after `clamp_parameters`.
        """
        parameter: Tensor = getattr(self, temperature)
        return parameter.exp()

    def pair_scale(self) -> Tensor:
        """The inverse temperature of images and captions.

        Returns:
            A scalar, as `scale`.
        """
        return self.scale(next(iter(self.temperatures)))

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Clamp the learned scalars to their ranges. The training loop calls it after each optimizer step."""
        for name in self.temperatures:
            self.get_parameter(name).clamp_(max=math.log(self.config.max_logit_scale))


def boxes_as_pairs(batch: Batch) -> Batch:
    """The features of a batch whose boxes are pairs too. Collective if `batch.counts` lacks their numbers."""
    names, given = ("image", "text"), batch.streams
    if "box_image" not in given:
        raise ValueError(
            "boxes_as_pairs needs boxes, but the batch has none; train on shards with boxes, or set boxes_as_pairs=false"
        )
    rows = {name: torch.cat([given[name].rows, given[f"box_{name}"].rows]) for name in names}
    n_boxes = batch.counts.get("box_image") or counts_of_ranks([len(given["box_image"].rows)])[0]
    n_pairs = tuple(len(given["image"].rows) + n for n in n_boxes)
    rest = {name: stream for name, stream in batch.with_rows(rows).streams.items() if not name.startswith("box_")}
    return replace(batch, streams=rest, counts={**batch.counts, **dict.fromkeys(names, n_pairs)})


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
    """Convert half-precision features to float32; float64 is kept. Lifts need it.

    Args:
        features: of any shape.

    Returns:
        Features of the same shape.
    """
    return features if features.dtype == torch.float64 else features.float()
