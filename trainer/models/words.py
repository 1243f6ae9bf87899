"""Lifted words of captions, and the edges between them.

Shapes: b captions, w words of the longest caption, d embedding width.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from trainer.batch import Stream
from trainer.models.points import Points
from trainer.text.syntax import Syntax

WORDS: Final = ("word_initial", "word_contextual")
"""Streams of the words of captions, without context and in it: rows [b w d]."""


def parse_of(stream: Stream) -> Syntax:
    """The parses of captions. Raises ValueError if there are none."""
    if stream.syntax is None:
        raise ValueError("syntax_meru needs the parse of each caption; use the train/ shards of the pipeline")
    return stream.syntax


class Words(NamedTuple):
    """Lifted words of captions. Points are valid where `is_word` is True, those of `head` where `is_child` is True.

    All other points are finite but meaningless.
    """

    initial: Tensor  # [b w d] without context
    contextual: Tensor  # [b w d] in the context of the caption
    head: Tensor  # [b w d] contextual points of the words' heads
    is_word: Tensor  # [b w] False for padding
    is_child: Tensor  # [b w] True for words with an edge to a head

    def points(self) -> dict[str, Tensor]:
        """The valid points [* d] by name: children and heads of edges, words without and with their context."""
        return {
            "child": self.contextual[self.is_child],
            "head": self.head[self.is_child],
            "word_alone": self.initial[self.is_word],
            "word": self.contextual[self.is_word],
        }


def join_words(initial: Tensor, contextual: Tensor, head: Tensor) -> Words:
    """Join lifted words [b w d], without and with their context, and `Syntax.head` [b w], negative where there is no word."""
    is_word = head >= 0
    own_index = torch.arange(head.shape[1], device=head.device)
    is_child = is_word & (head != own_index)
    # A word without an edge is its own head: its energy is finite, and the mask excludes it from the sums.
    indices = torch.where(is_child, head, own_index)[..., None].expand_as(contextual)
    return Words(initial, contextual, contextual.gather(1, indices), is_word, is_child)


def words_of(points: Points) -> Words:
    """Lifted words of the captions of this rank, computed once. Raises ValueError if the batch has none.

    Words of other ranks are not needed: averaging the gradients over the ranks gives the gradients of the mean over all
    captions.
    """
    head = parse_of(points.stream("text")).head
    return points.once("words", lambda: join_words(points.of(WORDS[0]), points.of(WORDS[1]), head))
