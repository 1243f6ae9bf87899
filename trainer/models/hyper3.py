"""Hyper3-CLIP: UNCHA with queries, to each of which the patches of the image are pooled while training.

ECCV 2026 workshop; the equations are those of the authors' notes on their code (docs/method.md of
github.com/Hyper3Labs/hyper3-clip, MIT). Shapes: b pairs, m queries, w width of the image tower.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainer.batch import Batch, Stream
from trainer.encoders.build import keep_patches, patches_of
from trainer.losses.functional import mean_over_pairs
from trainer.losses.uncertainty import calibration, uncertainty
from trainer.models.config import Hyper3Config
from trainer.models.hycoclip import relations
from trainer.models.points import Points
from trainer.models.terms import Contrast, Entails, Term, energies
from trainer.models.uncha import UNCHA, entailment

# Queries of images in a batch, and the pooling of patches by them (Hyper3-CLIP).
#
# Shapes: b pairs, m queries, p patches, w and v widths of the image and the text tower, d embedding width.

QUERIES: Final = "queries"
"""Stream of the queries of all pairs, with owner, parent and weight (`trainer.data.text_streams`)."""


class QueryPooling(nn.Module):
    """Cross-attention of queries over the patches of their images: x + MLP(LN(x)), x = MHA(W h, Z, Z) (section 3.2)."""

    def __init__(self, width: int, text_width: int, heads: int, is_mean: bool = False) -> None:
        super().__init__()
        self.is_mean = is_mean
        self.query = nn.Linear(text_width, width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: Tensor, patches: Tensor, stream: Stream) -> Tensor:
        """Patches [b p w] pooled for queries [m w] with text states [m v]. Those of an image share keys and values."""
        owner, queries = stream.owner, self.query(states)
        assert owner is not None
        if self.is_mean:  # each parameter has a gradient, as DDP expects
            return patches.mean(1)[owner] + 0 * torch.stack([part.sum() for part in self.parameters()]).sum()
        place = torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner)
        padded = queries.new_zeros(len(patches), max(stream.chain, 1), queries.shape[1])
        padded = padded.index_put((owner, place), queries)
        found = self.attention(padded, patches, patches, need_weights=False)[0][owner, place]
        pooled: Tensor = found + self.mlp(self.norm(found))
        return pooled


def query_streams(
    stream: Stream, text: Tensor, pooled: Tensor, captions: Tensor, is_shuffled: bool = False
) -> dict[str, Stream]:
    """Streams of the queries [m d], of the patches pooled for them [m d], and of the texts above them, or those of others."""
    owner = stream.owner
    assert owner is not None
    assert stream.parent is not None
    above = torch.where(stream.parent[:, None] < 0, captions[owner], text[stream.parent.clamp(min=0)])
    return {
        QUERIES: stream._replace(rows=text),
        "query_images": Stream(pooled, "image", owner),
        "query_parents": Stream(above.roll(1, 0) if is_shuffled else above, "text", owner),
    }


def weights_of(points: Points, entails: Entails) -> Tensor | float:
    """The weights [m] of the rows of a relation."""
    found = points.stream(QUERIES).weight if entails.name.startswith("query") else None
    return 1.0 if found is None else found


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
