"""Dependency parses of captions, aligned with the tokens of the text tower.

A word is a token of the parser (spaCy), a token is one of the byte-pair encoding. Their boundaries differ: "don't"
has the words "do" and "n't", and the tokens "don" and "'t".

Shapes: b texts, l tokens, w words of the longest text.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hypergrit_common.samples import Word
from trainer.text.base import Span, TextTokenizer, pad_rows
from trainer.text.relations import RELATIONS

RELATION_IDS = {name: index for index, name in enumerate(RELATIONS)}
NONE = -1  # no word: a token without a word, or padding


@dataclass(frozen=True, kw_only=True)
class WordTree:
    """The tree over those n words of a caption whose tokens all fit the context, numbered from 0 in their order."""

    word_of_token: tuple[int, ...]  # [l] NONE for start and end of text, and for tokens without a word
    head: tuple[int, ...]  # [n] the word itself if it is a root, or if its head is not among the n words
    relation: tuple[int, ...]  # [n] index in RELATIONS


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """The trees of the b captions of a batch, one row per caption, padded.

    Each word has at most one edge, to its head. `head` contains the index of that word in the same caption, the index
    of the word itself if it has no edge, and NONE for padding.
    """

    word_of_token: Tensor  # [b l] int64, padded with NONE
    head: Tensor  # [b w] int64, padded with NONE
    relation: Tensor  # [b w] int64, padded with 0

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Syntax":
        """Return a copy with the tensors on `device`."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Syntax":
        """Return a copy with `function` applied to each tensor, such as a selection of rows."""
        return Syntax(**{field.name: function(getattr(self, field.name)) for field in dataclasses.fields(self)})


def largest_overlap(spans: Sequence[Span], words: Sequence[Word]) -> list[int]:
    """Return, for each span, the word that shares the most characters with it, or NONE if no word does.

    The first of several such words is chosen. Words must be sorted and must not overlap; spans may be in any order.
    """
    word_of_character = [NONE] * max((word.end for word in words), default=0)
    for index, word in enumerate(words):
        word_of_character[word.start : word.end] = [index] * (word.end - word.start)
    chosen = []
    for start, end in spans:
        owners = word_of_character[start:end]
        candidates = sorted(set(owners) - {NONE})
        chosen.append(max(candidates, key=owners.count, default=NONE))
    return chosen


def align(tokenizer: TextTokenizer, caption: str, words: Sequence[Word]) -> tuple[list[int], WordTree]:
    """Return the ids of a caption, truncated to the context, and the tree of its words over these ids.

    A word is kept if it has at least one token and all its tokens fit the context. Other words are dropped with their
    edges, and those of their tokens that do fit belong to no word.
    """
    all_ids, spans = tokenizer.encode_with_offsets(caption)
    ids = tokenizer.truncate(all_ids)
    owners = largest_overlap(spans, words)
    n_kept = len(ids) - tokenizer.n_end  # tokens before end of text, which has no word
    truncated = set(owners[n_kept:])
    kept = sorted(set(owners) - truncated - {NONE})
    new_index = {word: index for index, word in enumerate(kept)}
    return ids, WordTree(
        word_of_token=tuple(new_index.get(owner, NONE) for owner in owners[:n_kept]) + (NONE,) * tokenizer.n_end,
        head=tuple(new_index.get(words[word].head, new_index[word]) for word in kept),
        relation=tuple(RELATION_IDS.get(words[word].dep, 0) for word in kept),
    )


def collate_trees(trees: Sequence[WordTree], length: int = 0) -> Syntax:
    """Batch the trees of captions, one row per caption; `length` is that of the padded captions, if it is not the longest."""
    return Syntax(
        word_of_token=pad_rows([tree.word_of_token for tree in trees], NONE, length),
        head=pad_rows([tree.head for tree in trees], NONE),
        relation=pad_rows([tree.relation for tree in trees], 0),
    )


def word_weights(word_of_token: Tensor, n_words: int, kind: str) -> Tensor:
    """Return a mask [b w l] of the tokens that represent a word: all its tokens ("mean") or its last one ("last")."""
    words = torch.arange(n_words, device=word_of_token.device)
    mask = word_of_token[:, None, :] == words[:, None]
    if kind == "last":
        mask &= ~(mask.flip(-1).cumsum(-1).flip(-1) > 1)
    return mask


def word_vectors(states: Tensor, mask: Tensor) -> Tensor:
    """Average token states [b l *] over the tokens of each word, given as a mask [b w l]. Padding gets zeros."""
    weights = mask.to(states.dtype)
    return weights @ states / weights.sum(-1, keepdim=True).clamp(min=1)
