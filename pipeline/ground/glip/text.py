"""From a caption and the character spans of its phrases to prompts: word pieces, and which of them name which phrase."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tokenizers import BertWordPieceTokenizer, Encoding
from torch import Tensor

from common.errors import UserError
from pipeline.ground.glip.config import TextConfig
from pipeline.ground.grounder import PhraseDrop, Span

PromptStyle = Literal["caption", "phrases"]

SEPARATOR = ". "  # between phrases of a list prompt
MAX_CAPTION_CHARS = 20_000  # longer text is no caption; tokenising it would only cost time


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One input of the language tower: `ids` with [CLS] and [SEP], and the positions of each phrase's word pieces."""

    ids: tuple[int, ...]
    phrases: tuple[tuple[int, tuple[int, ...]], ...]  # (index of the phrase, positions; [CLS] is position 0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The prompts of one caption. Every phrase is in exactly one prompt or in `dropped`."""

    prompts: tuple[Prompt, ...]
    dropped: tuple[tuple[int, PhraseDrop], ...]


class Prompter:
    """Tokenises captions as bert-base-uncased does, with a vocabulary file of one word piece a line."""

    def __init__(self, vocab: Path, config: TextConfig) -> None:
        """Raises UserError for a vocabulary that is not there, is none, or is larger than the model's."""
        if not vocab.is_file():
            raise UserError(f"GLIP's vocabulary {vocab} is not there; it is bert-base-uncased's vocab.txt")
        try:
            self.tokenizer = BertWordPieceTokenizer(str(vocab), lowercase=True)
            self.unknown = self.tokenizer.token_to_id("[UNK]")
        except Exception as error:  # tokenizers has no narrower one
            raise UserError(f"{vocab} is no vocabulary, a word piece a line: {error}") from error
        self.config = config
        n_pieces = self.tokenizer.get_vocab_size()
        if self.unknown is None or n_pieces > config.vocab_size:
            raise UserError(
                f"{vocab} holds {n_pieces} word pieces; it must have [UNK] and no more than the model's {config.vocab_size}"
            )
        self.ignored = {self.tokenizer.token_to_id(word) for word in config.ignored_words}

    def plan(self, caption: str, spans: Sequence[Span], style: PromptStyle) -> Plan:
        """Prompts that together hold every phrase that can be grounded.

        `caption` reads the caption itself, GRIT's way; `phrases` a list of the phrases alone, as detection data does.
        A text too long for one prompt is cut between phrases.
        """
        valid, dropped = _check_spans(caption, spans)
        if style == "phrases":
            caption, valid = _join_phrases(caption, valid)
        if not valid:
            return Plan(prompts=(), dropped=tuple(dropped))
        encoding = self.tokenizer.encode(caption)
        ids = encoding.ids  # a copy at every look
        found: list[tuple[int, list[int]]] = []
        for index, span in valid:
            tokens = span_tokens(encoding, span)
            if not tokens:
                dropped.append((index, "no_word_piece"))
            elif all(ids[token] == self.unknown for token in tokens):
                dropped.append((index, "unknown_words"))
            else:
                content = [token for token in tokens if ids[token] not in self.ignored]
                found.append((index, content or tokens))
        prompts, too_long = _split(ids, found, self.config.max_tokens)
        dropped += [(index, "too_many_word_pieces") for index in too_long]
        return Plan(prompts=tuple(prompts), dropped=tuple(sorted(dropped)))


def span_tokens(encoding: Encoding, span: Span) -> list[int]:
    """Positions of the word pieces of a span, or none.

    As in the released code: a boundary without a word piece (white space) moves inwards by at most two characters.
    """
    start, end = span
    firsts = (encoding.char_to_token(char) for char in range(start, start + 3))
    lasts = (encoding.char_to_token(char) for char in range(end - 1, end - 4, -1) if char >= 0)
    first = next((token for token in firsts if token is not None), None)
    last = next((token for token in lasts if token is not None), None)
    return [] if first is None or last is None else list(range(first, last + 1))


def positive_map(phrases: Sequence[Sequence[int]], length: int) -> Tensor:
    """Bool [phrases, length], true at the positions of each phrase."""
    rows = torch.zeros(len(phrases), length, dtype=torch.bool)
    for row, tokens in zip(rows, phrases, strict=True):
        row[list(tokens)] = True
    return rows


def pad_prompts(prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Ids and mask, int64 [b, t], padded with 0 to the longest prompt: more padding would change no result."""
    length = max(len(ids) for ids in prompts)
    ids = torch.zeros(len(prompts), length, dtype=torch.int64)
    for row, values in zip(ids, prompts, strict=True):
        row[: len(values)] = torch.tensor(values)
    lengths = torch.tensor([len(values) for values in prompts])
    return ids, (torch.arange(length) < lengths[:, None]).long()


def _check_spans(caption: str, spans: Sequence[Span]) -> tuple[list[tuple[int, Span]], list[tuple[int, PhraseDrop]]]:
    length = min(len(caption), MAX_CAPTION_CHARS)
    valid: list[tuple[int, Span]] = []
    dropped: list[tuple[int, PhraseDrop]] = []
    for index, (start, end) in enumerate(spans):
        if not 0 <= start < end <= len(caption):
            dropped.append((index, "bad_span"))
        elif end > length:
            dropped.append((index, "too_many_word_pieces"))
        else:
            valid.append((index, (start, end)))
    return valid, dropped


def _join_phrases(caption: str, spans: list[tuple[int, Span]]) -> tuple[str, list[tuple[int, Span]]]:
    """The phrases alone, separated, and where each of them stands there."""
    text, moved = "", []
    for index, (start, end) in spans:
        text += SEPARATOR if text else ""
        moved.append((index, (len(text), len(text) + end - start)))
        text += caption[start:end]
    return text, moved


def _split(ids: Sequence[int], phrases: list[tuple[int, list[int]]], max_tokens: int) -> tuple[list[Prompt], list[int]]:
    """Windows of at most `max_tokens` ids that cut no phrase, and the phrases longer than a window."""
    room = max_tokens - 2
    too_long = [index for index, tokens in phrases if tokens[-1] - tokens[0] >= room]
    waiting = sorted((tokens[0], index, tokens) for index, tokens in phrases if tokens[-1] - tokens[0] < room)
    prompts: list[Prompt] = []
    start, last = 1, len(ids) - 1  # the first id is [CLS], the last [SEP]
    while waiting:
        stop = min(start + room, last)
        inside = [phrase for phrase in waiting if phrase[2][-1] < stop]
        waiting = [phrase for phrase in waiting if phrase[2][-1] >= stop]
        if inside:
            if waiting:  # leave a phrase that would be cut, and the words after it, to the next window
                stop = max(min(stop, waiting[0][0]), max(tokens[-1] for _, _, tokens in inside) + 1)
            members = tuple((index, tuple(token - start + 1 for token in tokens)) for _, index, tokens in inside)
            prompts.append(Prompt(ids=(ids[0], *ids[start:stop], ids[last]), phrases=members))
        if waiting:
            start = waiting[0][0]
    return prompts, too_long
