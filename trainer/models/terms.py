"""The loss of a model as a list of weighted terms over named streams.

A term is a contrastive loss (`Contrast`), the mean energy of an entailment relation (`Entails`), or any function of the
lifted points that returns a number. Terms belong to groups: the part of their name before "/". The loss is the sum over
groups of the group's weight times the weighted sum of its terms.

Shapes: m rows of a stream on this rank, k factors; [*k m] is [m], or [k m] in a product of factors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from trainer.batch import Losses, Side
from trainer.losses.contrast import ContrastiveLoss, HasSimilarity, chunk_size
from trainer.losses.functional import mean_over_pairs
from trainer.losses.similarity import LazySimilarity
from trainer.models.config import ModelConfig
from trainer.models.points import Points


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Mean over `sides` of the contrastive loss of queries of this rank against candidates of all ranks.

    A query matches the candidate in the same row, or the candidate that owns it. The logits are similarities times the
    exponential of the parameter `temperature`. A side is a mean over its own queries, and 0 in a batch that has none:
    the weights of the others stay the same.

    Attributes:
        sides: names of the streams of queries and of candidates, one pair or more.
        weights: those of the sides; a side of weight 0 is not computed. Without weights, each is 1. The sum is divided
            by the number of sides.
        temperature: name of the parameter, a key of `DualEncoder.temperatures`.
        factors: maps lifted queries [*k m d] to factors [m] on their logits; None: 1.
        copies: each candidate counts once for every query of the batch that it matches, and its copies are negatives.
    """

    sides: tuple[tuple[str, str], ...]
    weights: tuple[float, ...] = ()
    temperature: str = "logit_scale"
    factors: Callable[[Tensor], Tensor] | None = None
    copies: bool = False


@dataclass(frozen=True, kw_only=True)
class Entails:
    """An entailment relation that a model learns, such as: a caption (general) entails its image (specific).

    Attributes:
        name: part of the names of loss terms and of evaluation metrics.
        general: name of a stream, or of `DualEncoder.word_points`.
        specific: the same; `Points.pair` says which streams form pairs.
        eta: factor on the half-apertures of cones.
        is_within: both sides are of one modality.
        equal_weight: weight of a phrase with the tokens of its caption.
    """

    name: str
    general: str
    specific: str
    eta: float = 1.0
    is_within: bool = False
    equal_weight: float = 1.0


Value = Contrast | Entails | Callable[[Points], Tensor]


@dataclass(frozen=True, kw_only=True)
class Term:
    """A term of the loss.

    Attributes:
        name: that of its group, or GROUP/NAME to log it beside its group.
        value: a contrastive loss, a relation, or a function from `Points` to a number []. Its average over the ranks is
            minimised, so a mean over rows needs the weight `Points.share`.
        weight: factor of the value within its group.
        gathers: streams whose points of all ranks a function uses.
    """

    name: str
    value: Value
    weight: float = 1.0
    gathers: tuple[str, ...] = ()


class HasTerms(HasSimilarity, Protocol):
    """Members of a model that the terms use; `trainer.models.dual_encoder.DualEncoder` documents the members."""

    @property
    def config(self) -> ModelConfig: ...

    is_symmetric: ClassVar[bool]
    pixel_mean: Tensor
    logit_bias: nn.Parameter

    def directed_similarity(self, queries: Tensor, candidates: Tensor, query: Side) -> Tensor: ...

    def penalty(self, general: Tensor, specific: Tensor, entails: Entails) -> Tensor: ...

    def scale(self, temperature: str) -> Tensor: ...

    def measures(self, points: Points) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Directed:
    """The similarity of a model whose queries are of one modality."""

    model: HasTerms
    query: Side

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return self.model.directed_similarity(queries, candidates, self.query)

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity | None:
        return self.model.lazy_similarity(queries, candidates) if self.model.is_symmetric else None


def sum_terms(model: HasTerms, points: Points, terms: Sequence[Term], weights: Mapping[str, float]) -> Losses:
    """Compute the loss of a batch. Collective. `weights` are those of the groups; 1 if missing.

    Terms are computed in their order. Logged are the groups' sums, and the values of the terms named GROUP/NAME.
    """
    values = [(term, value_of(model, points, term.value)) for term in terms]
    groups: dict[str, list[Tensor]] = {}
    for term, value in values:
        groups.setdefault(term.name.partition("/")[0], []).append(term.weight * value)
    sums = {name: torch.stack(parts).sum() for name, parts in groups.items()}
    # Groups of weight 0 are only logged: 0 times an infinite value is not a number.
    weighted = [weights.get(name, 1.0) * value for name, value in sums.items() if weights.get(name, 1.0)]
    loss = reduce(torch.add, weighted)
    logged = {name: value.detach() for name, value in sums.items()} | model.measures(points)
    logged |= {term.name: value.detach() for term, value in values if "/" in term.name}
    found = [term.value for term in terms if isinstance(term.value, Entails)]
    return Losses(
        loss=loss,
        terms=logged,
        energies={entails.name: energies(model, points, entails).detach() for entails in found},
        points={name: points.of(name).detach() for name in points.batch.streams if ("of", name) in points.cache},
    )


def _named_by(term: Term) -> tuple[str, ...]:
    """The streams that a term names. A function may use others of this rank."""
    value, found = term.value, term.gathers
    if isinstance(value, Entails):
        return (value.general, value.specific, *found)
    return (*chain(*value.sides), *found) if isinstance(value, Contrast) else found


def streams_of(terms: Sequence[Term]) -> dict[str, str]:
    """The streams that terms name.

    Args:
        terms: those of a model.

    Returns:
        Name of a stream -> that of the last term which names it.
    """
    return {name: term.name for term in terms for name in _named_by(term)}


def gathered_streams(terms: Sequence[Term], is_symmetric: bool) -> tuple[list[str], list[tuple[str, str]]]:
    """The streams whose rows of all ranks the terms need, and the pairs of streams whose copies they need."""
    contrasts = [term.value for term in terms if isinstance(term.value, Contrast)]
    names = [
        name
        for contrast in contrasts
        for query, candidate in contrast.sides
        for name in ((query, candidate) if is_reversible(contrast, is_symmetric) else (candidate,))
    ]
    names += [name for term in terms for name in term.gathers]
    return names, [contrast.sides[0] for contrast in contrasts if contrast.copies]


def is_reversible(term: Contrast, is_symmetric: bool) -> bool:
    """True if there are two sides, which share one matrix of similarities."""
    queries, candidates = zip(*term.sides, strict=True)
    is_reverse = len(queries) == 2 and queries == candidates[::-1]
    return is_reverse and is_symmetric and term.factors is None and not term.copies


def value_of(model: HasTerms, points: Points, value: Value) -> Tensor:
    """The value [] of a term, without its weight. Collective."""
    match value:
        case Contrast():
            return contrast(model, points, value)
        case Entails():
            owned = points.owned(value.general, value.specific)
            found = energies(model, points, value)
            equal = points.stream(owned).equal
            if value.equal_weight != 1 and equal is not None:
                found = torch.where(equal, value.equal_weight * found, found)
            return points.share(owned) * mean_over_pairs(found)
        case _:
            return value(points)


def energies(model: HasTerms, points: Points, entails: Entails) -> Tensor:
    """Energies [*k m] of the pairs of a relation, computed once."""

    def compute() -> Tensor:
        return model.penalty(*points.pair(entails.general, entails.specific), entails)

    return points.once(("energies", entails.name, entails.general, entails.specific), compute)


def contrast(model: HasTerms, points: Points, term: Contrast) -> Tensor:
    """Value [] of a contrastive term. Collective."""
    queries, candidates = zip(*term.sides, strict=True)
    weights = term.weights or (1.0,) * len(queries)
    is_shared = is_reversible(term, model.is_symmetric) and points.are_paired(*queries)
    if is_shared:
        everything, rows = [points.all(name) for name in queries], [points.of(name) for name in queries]
    else:
        rows, everything = [points.of(name) for name in queries], [points.all(name) for name in candidates]
    scale = model.scale(term.temperature)
    if is_shared:
        share, targets = points.share(queries[0]), points.targets(queries[0], candidates[0])
        loss = contrastive_loss(model, model).symmetric(
            rows[0], rows[1], everything[0], everything[1], scale, (weights[0], weights[1]), targets
        )
        return share * loss
    parts: dict[tuple[str, str], list[Tensor]] = {}
    for side, query, candidate, weight in zip(term.sides, rows, everything, weights, strict=True):
        if weight:
            # Sides of the same owners have one share and the same targets and copies, which are found once.
            like = next(
                (q, c) for q, c in term.sides if points.are_paired(q, side[0]) and points.are_paired(c, side[1])
            )
            copies = points.copies(*like) if term.copies else None
            scales = scale if term.factors is None else scale * term.factors(query)
            directed = contrastive_loss(Directed(model, points.stream(side[0]).side), model)
            loss = weight * directed.one_way(query, candidate, scales, points.targets(*like), copies)
            parts.setdefault(like, []).append(loss)
    sums = [points.share(names[0]) * (torch.stack(found).sum() / len(weights)) for names, found in parts.items()]
    return reduce(torch.add, sums) if sums else 0 * scale


def contrastive_loss(similarity: HasSimilarity, model: HasTerms) -> ContrastiveLoss:
    """The contrastive loss by a similarity, in the implementation that the settings of the model select."""
    chunk = chunk_size(model.config.loss_chunk, model.pixel_mean.device)
    bias = model.logit_bias if model.config.contrastive == "sigmoid" else None
    return ContrastiveLoss(model=similarity, chunk=chunk, bias=bias)
