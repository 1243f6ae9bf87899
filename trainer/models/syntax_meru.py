"""Syntax-MERU: MERU whose text tower learns the dependency trees of captions (docs/syntax.md).

Shapes: b captions, l tokens, w words of the longest caption, d embedding width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.batch import Batch, Losses, Pairs
from trainer.encoders.text import StateSource
from trainer.losses.functional import mean_over_captions
from trainer.models.config import SyntaxMERUConfig
from trainer.models.dual_encoder import Entails, Part
from trainer.models.meru import MERU
from trainer.text.syntax import RELATIONS, Syntax, word_vectors, word_weights


class Words(NamedTuple):
    """Lifted words of captions. Points are valid where `is_word` is True, those of `head` where `is_child` is True.

    All other points are finite but meaningless.
    """

    initial: Tensor  # [b w d] without context
    contextual: Tensor  # [b w d] in the context of the caption
    head: Tensor  # [b w d] contextual points of the words' heads
    is_word: Tensor  # [b w] False for padding
    is_child: Tensor  # [b w] True for words with an edge to a head


class SyntaxLoss(NamedTuple):
    """The two terms of eq. 3, and the share of edges that satisfy entailment; each []."""

    edges: Tensor
    words: Tensor
    satisfied: Tensor


class SyntaxMERU(MERU):
    """MERU with a syntax loss: a word entails its head, and a word without context entails itself in its caption.

    The model of "Syntax-Preserving Hyperbolic Visual Semantic Embeddings", called "the paper" below.
    """

    config: SyntaxMERUConfig
    shares = frozenset({"syntax/satisfied"})
    relation_weights: Tensor

    def __init__(self, config: SyntaxMERUConfig) -> None:
        super().__init__(config)
        weights = torch.tensor([config.relation_weights.get(name, 1.0) for name in RELATIONS])
        # Not persistent, so that the state dict is that of MERU.
        self.register_buffer("relation_weights", weights, persistent=False)

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"parse"}

    def caption_features(self, batch: Batch) -> dict[str, Tensor]:
        """Features of captions and of their words, from one pass of the text tower.

        Raises ValueError if the batch has no parses.
        """
        if batch.syntax is None:
            raise ValueError(
                "syntax_meru needs the parse of each caption, but the batch has none; use the train/ shards of the pipeline"
            )
        return self.word_features(batch.token_ids, batch.syntax)

    def word_features(self, token_ids: Tensor, syntax: Syntax) -> dict[str, Tensor]:
        """Features of captions [b d] and of their words [b w d], by field of `Pairs`, from token ids [b l]."""
        states = self.textual(token_ids, StateSource(kind=self.config.word_states, block=self.config.word_block))
        return {
            "text": self.textual_proj(states.pooled),
            "word_initial": self.project_words(states.initial, syntax),
            "word_contextual": self.project_words(states.contextual, syntax),
        }

    def project_words(self, states: Tensor, syntax: Syntax) -> Tensor:
        """Features [b w d] of words, before the lift, from the states [b l *] of their tokens."""
        weights = word_weights(syntax.word_of_token, syntax.head.shape[1], self.config.word_vector)
        vectors: Tensor = self.textual_proj(word_vectors(states, weights))
        return vectors

    def losses(self, pairs: Pairs) -> Losses:
        """MERU's loss + syntax_weight * (edges + words)      the paper's eq. 1 to 3"""
        base = super().losses(pairs)
        syntax = self.syntax_loss(pairs)
        terms = {"syntax": syntax.edges + syntax.words, "syntax/edges": syntax.edges, "syntax/words": syntax.words}
        return Losses(
            loss=base.loss + self.config.syntax_weight * terms["syntax"],
            terms=base.terms
            | {name: term.detach() for name, term in terms.items()}
            | {"syntax/satisfied": syntax.satisfied},
        )

    def syntax_loss(self, pairs: Pairs) -> SyntaxLoss:
        """The terms of eq. 3, averaged over the captions of this rank.

            edges:  max(0, ext(e_child, e_head) - aper(e_child)), contextual, times the relation's weight
            words:  max(0, ext(e_initial, e_contextual) - aper(e_initial))

        Words of other ranks are not needed: averaging the gradients over the ranks gives the gradients of the mean over
        all captions.

        Raises ValueError if the features of the words or the parses are missing.
        """
        if pairs.word_initial is None or pairs.word_contextual is None or pairs.syntax is None:
            raise ValueError("syntax_meru needs the features of words and the parse of each caption; one is missing")
        words = self.lift_words(pairs.word_initial, pairs.word_contextual, pairs.syntax.head)
        edge_energy = self.energy(general=words.contextual, specific=words.head)
        word_energy = self.energy(general=words.initial, specific=words.contextual)
        reduction = self.config.syntax_reduction
        satisfied = ((edge_energy == 0) & words.is_child).sum() / words.is_child.sum().clamp(min=1)
        weighted = edge_energy * self.relation_weights[pairs.syntax.relation]
        return SyntaxLoss(
            edges=mean_over_captions(weighted, words.is_child, reduction),
            words=mean_over_captions(word_energy, words.is_word, reduction),
            satisfied=satisfied,
        )

    def lift_words(self, initial: Tensor, contextual: Tensor, head: Tensor) -> Words:
        """Lift features of words [b w d]. `head` [b w] is `Syntax.head`."""
        initial, contextual = self.lift_text(initial), self.lift_text(contextual)
        is_word = head >= 0
        own_index = torch.arange(head.shape[1], device=head.device)
        is_child = is_word & (head != own_index)
        # A word without an edge is its own head: its energy is finite, and the mask excludes it from the sums.
        indices = torch.where(is_child, head, own_index)[..., None].expand_as(contextual)
        return Words(initial, contextual, contextual.gather(1, indices), is_word, is_child)

    def word_points(self, token_ids: Tensor, syntax: Syntax) -> dict[Part, Tensor]:
        features = self.word_features(token_ids, syntax)
        words = self.lift_words(features["word_initial"], features["word_contextual"], syntax.head)
        return {
            "child": words.contextual[words.is_child],
            "head": words.head[words.is_child],
            "word_alone": words.initial[words.is_word],
            "word": words.contextual[words.is_word],
        }

    def entailments(self) -> tuple[Entails, ...]:
        return (
            *super().entailments(),
            Entails(name="syntax_edge", general="child", specific="head"),
            Entails(name="syntax_word", general="word_alone", specific="word"),
        )
