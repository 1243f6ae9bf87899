"""Hyper3-CLIP: UNCHA with queries, to each of which the patches of the image are pooled while training.

ECCV 2026 workshop; the equations are those of the authors' notes on their code (docs/method.md of
github.com/Hyper3Labs/hyper3-clip, MIT). Shapes: b pairs, m queries, w width of the image tower.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainer.batch import Batch
from trainer.encoders.build import keep_patches, patches_of
from trainer.losses.functional import mean_over_pairs
from trainer.losses.uncertainty import calibration, uncertainty
from trainer.models.config import Hyper3Config
from trainer.models.hycoclip import relations
from trainer.models.points import Points
from trainer.models.queries import QUERIES, QueryPooling, query_streams, weights_of
from trainer.models.terms import Contrast, Entails, Term, energies
from trainer.models.uncha import UNCHA, entailment


class Hyper3CLIP(UNCHA):
    """UNCHA without leak and spread; a query entails its pooled patches and the text above it, these the image."""

    config: Hyper3Config
    visual: Any

    def __init__(self, config: Hyper3Config) -> None:
        super().__init__(config)
        keep_patches(self.visual)
        width = self.visual_proj.in_features
        if width % config.query_heads:
            raise ValueError(f"the image tower has width {width}; give a query_heads that divides it")
        is_mean = config.query_control == "mean"
        self.query_pooling = QueryPooling(width, self.textual_proj.in_features, config.query_heads, is_mean)

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {QUERIES}

    def terms(self) -> list[Term]:
        """UNCHA's contrastive losses; all relations with weight 1, of queries with the weights of their kinds (section 3.3)."""
        inter, intra = self.config.eta_inter, self.config.eta_intra
        contrasts = [term for term in super().terms() if isinstance(term.value, Contrast)]
        plain = relations(inter, intra, self.config.equal_phrase_weight)[: 4 if self.config.use_boxes else 1]
        sides = ("query_images", "image")[:: -1 if self.config.query_control == "reversed" else 1]
        queries = (
            Entails(name="query_text_image", general=QUERIES, specific="query_images", eta=inter),
            Entails(name="query_image", general=sides[0], specific=sides[1], eta=intra, is_within=True),
            Entails(name="query_text", general=QUERIES, specific="query_parents", eta=intra, is_within=True),
        )
        terms, weights = [*contrasts, *(entailment(entails, 1.0) for entails in plain)], self.config.query_terms
        parts: list[tuple[str, Any, float, Entails]] = [("", self.query_energy, 1.0, e) for e in queries]
        weight = self.config.calibration_weight
        parts += [("calibration_", self.calibration, weight, e) for e in (*plain, *queries) if e.is_within]
        for kind, value, weight, e in parts:
            name, weight = f"entailment/{kind}{e.name}", weight * weights.get(e.name, 1.0)
            terms.append(Term(name=name, value=partial(value, entails=e), weight=weight))
        return terms

    def query_energy(self, points: Points, entails: Entails) -> Tensor:
        """The mean [] over queries of their weights times their energies."""
        return points.share(QUERIES) * mean_over_pairs(weights_of(points, entails) * energies(self, points, entails))

    def calibration(self, points: Points, entails: Entails) -> Tensor:
        """UNCHA's calibration [] without the spread, by the weights of queries."""
        names, residual = (entails.general, entails.specific), energies(self, points, entails).detach()
        rows = calibration(residual, uncertainty(points.pair(*names)[0]), self.config.calibration)
        return points.share(points.owned(*names)) * mean_over_pairs(weights_of(points, entails) * rows)

    def image_tokens(self, images: Tensor) -> Tensor:
        """Output of the image tower before its pooling."""
        tokens: Tensor = self.visual.forward_features(self.normalised(images) if images.ndim == 4 else images)
        return tokens

    def features(self, batch: Batch, encode_images: Callable[[Tensor], Tensor] | None = None) -> Batch:
        """Features of a batch and its queries; boxes that are stored features take a pass of their own."""
        queries = batch["queries"]
        images = {name: stream.rows for name, stream in batch.streams.items() if stream.side == "image"}
        parts = [*images.values()]
        if len({part.ndim for part in parts}) == 1:
            parts = [torch.cat(parts)]
        tokens = [self.image_tokens(part) for part in parts]
        patches = patches_of(self.visual, tokens[0][: len(images["image"])])
        states = torch.cat([self.visual.forward_head(part, pre_logits=True) for part in tokens])
        pooled = batch.with_rows(dict(zip(images, states.split([*map(len, images.values())]), strict=True)))
        others = {name: stream for name, stream in pooled.streams.items() if name != QUERIES}
        found = super().features(dataclasses.replace(pooled, streams=others), self.visual_proj)
        states, is_shuffled = self.textual(queries.rows), self.config.query_control == "shuffled"
        of_patches, texts = self.visual_proj(self.query_pooling(states, patches, queries)), self.textual_proj(states)
        made = query_streams(queries, texts, of_patches, found["text"].rows, is_shuffled)
        return dataclasses.replace(found, streams=found.streams | made)
