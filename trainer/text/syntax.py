"""The parse of captions, word by word, on the tokens that the text tower sees.

Shapes: b texts, l tokens, w words of the longest text. A word is a token of the parser (spaCy): "don't" has two, "do"
and "n't", where the byte pairs are "don" and "'t".
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.text.offsets import Span
from trainer.text.relations import RELATIONS
from trainer.text.tokenizer import Tokenizer

RELATION_IDS = {name: index for index, name in enumerate(RELATIONS)}
NONE = -1


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a parse: characters [start, end) of the caption, index of its head (a root's own), relation to it."""

    start: int
    end: int
    head: int
    dep: str


@dataclass(frozen=True, kw_only=True)
class WordTree:
    """A caption's words that the tower sees whole, numbered from 0 in their order; n words, l tokens."""

    word_of_token: tuple[int, ...]  # [l]; NONE: start and end of text, and pieces of no word
    head: tuple[int, ...]  # [n]; a word without a head, or without one that the tower sees, has itself
    relation: tuple[int, ...]  # [n] index in RELATIONS


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """The trees of b captions, each field with a row a caption, so that rows of a batch are rows of this.

    A tree has one edge at most from each word, to its head. `head` says all: NONE is no word (padding), itself a word
    without an edge, any other number the word of the same caption it depends on.
    """

    word_of_token: Tensor  # [b l] int64
    head: Tensor  # [b w] int64
    relation: Tensor  # [b w] int64

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Syntax":
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Syntax":
        return self.map(Tensor.pin_memory)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Syntax":
        """The same with `function` of each tensor, such as a choice of rows."""
        return Syntax(**{field.name: function(getattr(self, field.name)) for field in dataclasses.fields(self)})


def read_words(tokens: Sequence[Mapping[str, Any]], caption: str) -> list[Word]:
    """The parse in a sample's JSON (schemas.rows.TOKEN). ValueError, naming the word, if it is no parse of `caption`."""
    words, before = [], 0
    for index, token in enumerate(tokens):
        try:
            start, end, head, dep = token["start"], token["end"], token["head"], token["dep"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"tokens[{index}] has no {error}; a word has start, end, head and dep") from error
        if not all(type(value) is int for value in (start, end, head)) or not isinstance(dep, str):
            raise ValueError(f"tokens[{index}]: start, end and head must be whole numbers, dep a string")
        if not before <= start <= end <= len(caption):
            raise ValueError(
                f"tokens[{index}] is [{start}, {end}) of a caption of {len(caption)} characters, after one that ends "
                f"at {before}: not a parse of this caption"
            )
        if not 0 <= head < len(tokens):
            raise ValueError(f"tokens[{index}] has head {head}; there are {len(tokens)} words")
        words.append(Word(start=start, end=end, head=head, dep=dep))
        before = end
    return words


def largest_overlap(spans: Sequence[Span], words: Sequence[Word]) -> list[int]:
    """For each span of a text the word it shares the most characters with, the first of equals; NONE if with none.

    Words are in order and apart from each other; spans are in any order.
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


def align(tokenizer: Tokenizer, caption: str, words: Sequence[Word]) -> tuple[list[int], WordTree]:
    """The caption's ids, cut to the context, and its tree over them.

    A word is there if the tower sees all its tokens, and one at least: what a cut goes through or takes away loses its
    edges too, and so do words without a token (white space). Their tokens, if some are left, belong to no word.
    """
    uncut, spans = tokenizer.encode_with_offsets(caption)
    ids = tokenizer.cut(uncut)
    owners = largest_overlap(spans, words)
    lost = set(owners[len(ids) - 1 :])  # end of text took the last place; it has no word itself
    seen = sorted(set(owners) - lost - {NONE})
    number = {word: index for index, word in enumerate(seen)}
    return ids, WordTree(
        word_of_token=tuple(number.get(owner, NONE) for owner in [*owners[: len(ids) - 1], NONE]),
        head=tuple(number.get(words[word].head, number[word]) for word in seen),
        relation=tuple(RELATION_IDS.get(words[word].dep, 0) for word in seen),
    )


def collate_trees(trees: Sequence[WordTree]) -> Syntax:
    """Trees of a batch's captions in the order of its rows, padded with NONE."""
    return Syntax(
        word_of_token=pad_rows([tree.word_of_token for tree in trees], NONE),
        head=pad_rows([tree.head for tree in trees], NONE),
        relation=pad_rows([tree.relation for tree in trees], 0),
    )


def pad_rows(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    padded = torch.full((len(rows), max(map(len, rows), default=0)), value, dtype=torch.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return padded


def word_weights(word_of_token: Tensor, n_words: int, kind: str) -> Tensor:
    """[b w l]: 1 where a token speaks for a word. "mean": all its tokens do; "last": the last one alone."""
    words = torch.arange(n_words, device=word_of_token.device)
    belongs = word_of_token[:, None, :] == words[:, None]
    if kind == "last":
        belongs &= ~(belongs.flip(-1).cumsum(-1).flip(-1) > 1)
    return belongs


def word_vectors(states: Tensor, belongs: Tensor) -> Tensor:
    """Mean over each word's tokens of states [b l *]: [b w *]. Padding has zeros."""
    weights = belongs.to(states.dtype)
    return weights @ states / weights.sum(-1, keepdim=True).clamp(min=1)
