"""Lifted words of captions, and the edges between them.

Shapes: b captions, w words of the longest caption, d embedding width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.models.points import Points


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


def lift_words(lift: Callable[[Tensor], Tensor], initial: Tensor, contextual: Tensor, head: Tensor) -> Words:
    """Lift the features of words to the space of the model.

    Args:
        lift: maps features [b w d] to points [b w d].
        initial: features of the words alone [b w d].
        contextual: features of the words in their caption [b w d].
        head: `Syntax.head` [b w], the index of each word's head; negative where there is no word.

    Returns:
        Both kinds of points, the point of each word's head, and masks [b w] of words and of words with an edge.
    """
    initial, contextual = lift(initial), lift(contextual)
    is_word = head >= 0
    own_index = torch.arange(head.shape[1], device=head.device)
    is_child = is_word & (head != own_index)
    # A word without an edge is its own head: its energy is finite, and the mask excludes it from the sums.
    indices = torch.where(is_child, head, own_index)[..., None].expand_as(contextual)
    return Words(initial, contextual, contextual.gather(1, indices), is_word, is_child)


def words_of(points: Points, lift: Callable[[Tensor], Tensor]) -> Words:
    """Lifted words of the captions of this rank, computed once. Raises ValueError if the batch has none.

    Words of other ranks are not needed: averaging the gradients over the ranks gives the gradients of the mean over all
    captions.
    """
    initial, contextual, syntax = points.pairs.word_initial, points.pairs.word_contextual, points.pairs.syntax
    if initial is None or contextual is None or syntax is None:
        raise ValueError("the model needs the features of words and the parse of each caption; one is missing")
    return points.once("words", lambda: lift_words(lift, initial, contextual, syntax.head))
