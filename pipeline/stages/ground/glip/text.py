"""Tokenize captions into prompts, and map the character spans of phrases to the prompts' word pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import BertWordPieceTokenizer, Encoding
from torch import Tensor

from hypergrit_common.errors import UserError
from pipeline.stages.ground.glip.config import TextConfig
from pipeline.stages.ground.grounder import PhraseDrop, Span, apart

MAX_CAPTION_CHARS = 20_000  # phrases that end later are dropped, to limit the number of prompts
SEPARATORS = (".", "?", "[CLS]", "[SEP]")  # never positive in GLIP's prompts of classes: no part of a phrase's score


class PhraseTokens(NamedTuple):
    """The index of a phrase, and the positions of its word pieces in the ids of a prompt."""

    phrase: int
    tokens: tuple[int, ...]


class DroppedPhrase(NamedTuple):
    """The index of a phrase that cannot be grounded, and the reason."""

    phrase: int
    reason: PhraseDrop


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """An input of the language tower."""

    ids: tuple[int, ...]  # of the word pieces, including [CLS] and [SEP]
    phrases: tuple[PhraseTokens, ...]
    overlapping: tuple[PhraseTokens, ...] = ()  # phrases that overlap others; their boxes are selected apart


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The prompts of one caption. Every phrase is in exactly one prompt or in `dropped`."""

    prompts: tuple[Prompt, ...]
    dropped: tuple[DroppedPhrase, ...]


class Prompter:
    """Tokenize captions as bert-base-uncased does, with a vocabulary file of one word piece per line.

    Args:
        vocab: the file.
        config: limits of the text tower.

    Raises:
        UserError: the file is missing, is not a vocabulary, or is too large for the model.
    """

    def __init__(self, vocab: Path, config: TextConfig) -> None:
        """Read the vocabulary."""
        if not vocab.is_file():
            raise UserError(f"GLIP's vocabulary {vocab} does not exist; copy bert-base-uncased's vocab.txt there")
        try:
            self.tokenizer = BertWordPieceTokenizer(str(vocab), lowercase=True)
            self.unknown = self.tokenizer.token_to_id("[UNK]")
        except Exception as error:  # tokenizers raises no narrower type
            raise UserError(f"{vocab} is not a vocabulary of one word piece per line: {error}") from error
        self.config = config
        n_pieces = self.tokenizer.get_vocab_size()
        if self.unknown is None or n_pieces > config.vocab_size:
            raise UserError(
                f"{vocab} holds {n_pieces} word pieces; it must hold [UNK] and at most {config.vocab_size} word pieces"
            )
        self.max_tokens = min(config.max_tokens, config.max_positions)
        self.ignored = {self.tokenizer.token_to_id(word) for word in (*config.ignored_words, *SEPARATORS)}

    def plan(self, caption: str, spans: Sequence[Span]) -> Plan:
        """Return the prompts for a caption, which together contain every phrase that can be grounded.

        A text that is too long for one prompt is split between phrases.

        Args:
            caption: the caption; phrases that end after its first MAX_CAPTION_CHARS characters are dropped.
            spans: its phrases, as characters [start, end).

        Returns:
            Prompts of at most `max_tokens` word pieces, and the phrases that cannot be grounded, with the reasons.
        """
        valid, dropped = _check_spans(caption, spans)
        if not valid:
            return Plan(prompts=(), dropped=tuple(dropped))
        encoding = self.tokenizer.encode(caption)
        ids = encoding.ids  # each access copies the list
        found: list[PhraseTokens] = []
        for index, span in valid:
            tokens = span_tokens(encoding, span)
            if not tokens:
                dropped.append(DroppedPhrase(index, "no_word_piece"))
            elif all(ids[token] == self.unknown for token in tokens):
                dropped.append(DroppedPhrase(index, "unknown_words"))
            else:
                content = [token for token in tokens if ids[token] not in self.ignored]
                found.append(PhraseTokens(index, tuple(content or tokens)))
        groups = [[found[k] for k in group] for group in apart([spans[index] for index, _ in found])]
        (prompts, too_long), (others, also_long) = (_split(ids, group, self.max_tokens) for group in groups)
        for other in others:  # the network runs once for the same text
            same = (n for n, p in enumerate(prompts) if p.ids == other.ids and not p.overlapping)
            at = next(same, len(prompts))
            phrases = prompts[at].phrases if at < len(prompts) else ()
            prompts[at : at + 1] = [Prompt(ids=other.ids, phrases=phrases, overlapping=other.phrases)]
        dropped += [DroppedPhrase(index, "too_many_word_pieces") for index in [*too_long, *also_long]]
        return Plan(prompts=tuple(prompts), dropped=tuple(sorted(dropped)))


def span_tokens(encoding: Encoding, span: Span) -> list[int]:
    """Positions of the word pieces of a span; [] if there are none.

    As in the released code, a boundary on white space moves inwards by at most two characters.
    """
    start, end = span
    firsts = (encoding.char_to_token(char) for char in range(start, start + 3))
    lasts = (encoding.char_to_token(char) for char in range(end - 1, end - 4, -1) if char >= 0)
    first = next((token for token in firsts if token is not None), None)
    last = next((token for token in lasts if token is not None), None)
    return [] if first is None or last is None else list(range(first, last + 1))


def positive_map(phrases: Sequence[Sequence[int]], length: int) -> Tensor:
    """Mask of the word pieces of each phrase, bool [phrases, length]."""
    rows = torch.zeros(len(phrases), length, dtype=torch.bool)
    for row, tokens in zip(rows, phrases, strict=True):
        row[list(tokens)] = True
    return rows


def pad_prompts(prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Ids and mask, int64 [b, t], padded with 0 to the longest prompt. Padding does not change any result."""
    length = max(len(ids) for ids in prompts)
    ids = torch.zeros(len(prompts), length, dtype=torch.int64)
    for row, values in zip(ids, prompts, strict=True):
        row[: len(values)] = torch.tensor(values)
    lengths = torch.tensor([len(values) for values in prompts])
    return ids, (torch.arange(length) < lengths[:, None]).long()


def _check_spans(caption: str, spans: Sequence[Span]) -> tuple[list[tuple[int, Span]], list[DroppedPhrase]]:
    """Split spans into valid and dropped ones, each with its index."""
    length = min(len(caption), MAX_CAPTION_CHARS)
    valid: list[tuple[int, Span]] = []
    dropped: list[DroppedPhrase] = []
    for index, (start, end) in enumerate(spans):
        if not 0 <= start < end <= len(caption):
            dropped.append(DroppedPhrase(index, "bad_span"))
        elif end > length:
            dropped.append(DroppedPhrase(index, "too_many_word_pieces"))
        else:
            valid.append((index, (start, end)))
    return valid, dropped


def _split(ids: Sequence[int], phrases: list[PhraseTokens], max_tokens: int) -> tuple[list[Prompt], list[int]]:
    """Split a text into prompts of at most `max_tokens` ids, between phrases.

    Returns the prompts and the indices of phrases that are longer than a prompt.
    """
    max_pieces = max_tokens - 2  # without [CLS] and [SEP]
    too_long = [phrase for phrase, tokens in phrases if tokens[-1] - tokens[0] >= max_pieces]
    fitting = [item for item in phrases if item.tokens[-1] - item.tokens[0] < max_pieces]
    waiting = sorted(fitting, key=lambda item: (item.tokens[0], item.phrase))
    prompts: list[Prompt] = []
    start, last = 1, len(ids) - 1  # the first id is [CLS], the last [SEP]
    while waiting:
        stop = min(start + max_pieces, last)
        inside = [item for item in waiting if item.tokens[-1] < stop]
        waiting = [item for item in waiting if item.tokens[-1] >= stop]
        if inside:
            if waiting:  # end before the next phrase, which does not fit, unless it overlaps a phrase of this prompt
                stop = max(min(stop, waiting[0].tokens[0]), max(item.tokens[-1] for item in inside) + 1)
            members = [PhraseTokens(phrase, tuple(token - start + 1 for token in tokens)) for phrase, tokens in inside]
            prompts.append(Prompt(ids=(ids[0], *ids[start:stop], ids[last]), phrases=tuple(members)))
        if waiting:
            start = waiting[0].tokens[0]
    return prompts, too_long
