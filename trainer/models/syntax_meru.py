"""MERU whose text tower is taught the dependency tree of captions (Syntax-Preserving Hyperbolic VSE; docs/syntax.md).

Shapes: b captions, l tokens, w words of the longest caption, d embedding width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.batch import Batch, Losses, Pairs
from trainer.encoders.text import StateSource
from trainer.losses.functional import over_captions
from trainer.models.config import SyntaxMERUConfig
from trainer.models.dual_encoder import Entails, Part
from trainer.models.meru import MERU
from trainer.text.syntax import RELATIONS, Syntax, word_vectors, word_weights


class Words(NamedTuple):
    """Lifted words of captions. Where there is no word or no edge, points mean nothing."""

    initial: Tensor  # [b w d]
    contextual: Tensor  # [b w d]
    head: Tensor  # [b w d] the contextual one of each word's head
    is_word: Tensor  # [b w]
    is_child: Tensor  # [b w] has an edge


class SyntaxMERU(MERU):
    """MERU + mu * syntax: a word entails its head, and what it means alone entails what it means in its caption."""

    config: SyntaxMERUConfig
    relation_weights: Tensor

    def __init__(self, config: SyntaxMERUConfig) -> None:
        super().__init__(config)
        weights = torch.tensor([config.relation_weights.get(name, 1.0) for name in RELATIONS])
        self.register_buffer("relation_weights", weights, persistent=False)  # the state dict stays MERU's

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"parse"}

    def caption_features(self, batch: Batch) -> dict[str, Tensor]:
        """Captions and their words in one pass of the text tower."""
        if batch.syntax is None:
            raise ValueError("syntax_meru needs a parse of each caption; train/ shards of the pipeline hold it")
        return self.word_features(batch.token_ids, batch.syntax)

    def word_features(self, token_ids: Tensor, syntax: Syntax) -> dict[str, Tensor]:
        states = self.textual(token_ids, StateSource(kind=self.config.word_states, block=self.config.word_block))
        return {
            "text": self.textual_proj(states.pooled),
            "word_initial": self.words(states.initial, syntax),
            "word_contextual": self.words(states.contextual, syntax),
        }

    def words(self, states: Tensor, syntax: Syntax) -> Tensor:
        """[b w d] before the lift, of token states [b l *]."""
        weights = word_weights(syntax.word_of_token, syntax.head.shape[1], self.config.word_vector)
        vectors: Tensor = self.textual_proj(word_vectors(states, weights))
        return vectors

    def losses(self, pairs: Pairs) -> Losses:
        """MERU's terms + mu * (edges + words)      eq. 1 to 3."""
        base = super().losses(pairs)
        edges, words, satisfied = self.syntax(pairs)
        terms = {"syntax": edges + words, "syntax/edges": edges, "syntax/words": words}
        return Losses(
            loss=base.loss + self.config.syntax_weight * terms["syntax"],
            terms=base.terms | {name: term.detach() for name, term in terms.items()} | {"syntax/satisfied": satisfied},
        )

    def syntax(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """The two terms of eq. 3, and the share of edges that hold.

            edges:  max(0, ext(e_child, e_head) - aper(e_child)), contextual, times the relation's weight
            words:  max(0, ext(e_initial, e_contextual) - aper(e_initial))

        Words are local to their rank: averaged over ranks like every gradient, the means are those of the whole batch.
        """
        if pairs.word_initial is None or pairs.word_contextual is None or pairs.syntax is None:
            raise ValueError("syntax_meru needs the words of each caption; their features or trees are missing")
        words = self.lift_words(pairs.word_initial, pairs.word_contextual, pairs.syntax.head)
        upward = self.energy(general=words.contextual, specific=words.head)
        inward = self.energy(general=words.initial, specific=words.contextual)
        reduction = self.config.syntax_reduction
        satisfied = ((upward == 0) & words.is_child).sum() / words.is_child.sum().clamp(min=1)
        weighted = upward * self.relation_weights[pairs.syntax.relation]
        return (
            over_captions(weighted, words.is_child, reduction),
            over_captions(inward, words.is_word, reduction),
            satisfied,
        )

    def lift_words(self, initial: Tensor, contextual: Tensor, head: Tensor) -> Words:
        """Of word vectors [b w d] and `Syntax.head`."""
        initial, contextual = self.lift_text(initial), self.lift_text(contextual)
        is_word = head >= 0
        itself = torch.arange(head.shape[1], device=head.device)
        is_child = is_word & (head != itself)
        # Where there is no edge the word stands for its head: finite, and left out of the sums.
        places = torch.where(is_child, head, itself)[..., None].expand_as(contextual)
        return Words(initial, contextual, contextual.gather(1, places), is_word, is_child)

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
