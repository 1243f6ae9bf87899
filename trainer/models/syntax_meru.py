"""Syntax-MERU: MERU whose text tower learns the dependency trees of captions (docs/ablations.md).

Shapes: b captions, l tokens, w words of the longest caption, d embedding width.
"""

from dataclasses import replace

import torch
from torch import Tensor

from trainer.batch import Stream
from trainer.encoders.text import StateSource
from trainer.losses.functional import mean_over_captions
from trainer.models.config import SyntaxMERUConfig
from trainer.models.meru import MERU
from trainer.models.points import Points
from trainer.models.terms import Entails, Term
from trainer.models.words import WORDS, join_words, parse_of, words_of
from trainer.text.syntax import RELATIONS, Syntax, word_vectors, word_weights


class SyntaxMERU(MERU):
    """MERU with a syntax loss: a word entails its head, and a word without context entails itself in its caption.

    "The paper" is "Syntax-Preserving Hyperbolic Visual Semantic Embeddings".
    """

    config: SyntaxMERUConfig
    shares = frozenset({"syntax/satisfied"})
    relation_weights: Tensor

    def __init__(self, config: SyntaxMERUConfig) -> None:
        super().__init__(config)
        weights = torch.tensor([config.relation_weights.get(name, 1.0) for name in RELATIONS])
        self.register_buffer("relation_weights", weights, persistent=False)  # the state dict is that of MERU

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"parse"}

    def text_streams(self, name: str, stream: Stream) -> dict[str, Stream]:
        """Features of captions and of their words, from one pass of the text tower. Raises ValueError without parses."""
        if name != "text":
            return super().text_streams(name, stream)
        syntax = parse_of(stream)
        states = self.textual(stream.rows, StateSource(kind=self.config.word_states, block=self.config.word_block))
        weights = word_weights(syntax.word_of_token, syntax.head.shape[1], self.config.word_vector)
        found = {name: stream._replace(rows=self.textual_proj(states.pooled))}
        words = (word_vectors(part, weights) for part in (states.initial, states.contextual))
        return found | {key: Stream(self.textual_proj(rows), "text") for key, rows in zip(WORDS, words, strict=True)}

    def terms(self) -> list[Term]:
        """MERU's terms + syntax_weight * (edges + words)      the paper's eq. 1 to 3"""
        contrast, entailment = super().terms()
        weight = {"mean": 1.0, "sum": 2.0}[self.config.contrast_directions]
        parts = [Term(name="syntax/edges", value=self.edge_loss), Term(name="syntax/words", value=self.word_loss)]
        return [replace(contrast, weight=weight), entailment, *parts]

    def group_weights(self) -> dict[str, float]:
        return super().group_weights() | {"syntax": self.config.syntax_weight}

    def edge_energies(self, points: Points) -> Tensor:
        """Energies [b w] of the words towards their heads."""
        words = words_of(points)
        return points.once("edges", lambda: self.energy(general=words.contextual, specific=words.head))

    def edge_loss(self, points: Points) -> Tensor:
        """Mean of max(0, ext(e_child, e_head) - aper(e_child)), contextual, times the relation's weight      eq. 3"""
        relation = parse_of(points.stream("text")).relation
        weighted = self.edge_energies(points) * self.relation_weights[relation]
        return mean_over_captions(weighted, words_of(points).is_child, self.config.syntax_reduction)

    def word_loss(self, points: Points) -> Tensor:
        """Mean of max(0, ext(e_initial, e_contextual) - aper(e_initial))      eq. 3"""
        words = words_of(points)
        energies = self.energy(general=words.initial, specific=words.contextual)
        return mean_over_captions(energies, words.is_word, self.config.syntax_reduction)

    def measures(self, points: Points) -> dict[str, Tensor]:
        """The scalars, and the share of edges that satisfy entailment."""
        words, energies = words_of(points), self.edge_energies(points)
        satisfied = ((energies == 0) & words.is_child).sum() / words.is_child.sum().clamp(min=1)
        return super().measures(points) | {"syntax/satisfied": satisfied}

    def word_points(self, token_ids: Tensor, syntax: Syntax) -> dict[str, Tensor]:
        found = self.text_streams("text", Stream(token_ids, "text", syntax=syntax))
        initial, contextual = (self.lift_text(found[name].rows) for name in WORDS)
        return join_words(initial, contextual, syntax.head).points()

    def entailments(self) -> tuple[Entails, ...]:
        return (
            *super().entailments(),
            Entails(name="syntax_edge", general="child", specific="head"),
            Entails(name="syntax_word", general="word_alone", specific="word"),
        )
