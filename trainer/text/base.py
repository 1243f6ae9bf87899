"""The interface of tokenizers: CLIP's (`trainer.text.tokenizer`) and those of transformers (`fast_tokenizer`)."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher

import torch
from torch import Tensor

# Map the characters of a cleaned or lower-cased text back to the original. A span is [start, end) in the original.

Span = tuple[int, int]
RUN = re.compile(r"\S+")


def source_spans(source: str, clean: Callable[[str], str]) -> tuple[str, list[Span]]:
    """Return `clean(source)`, and for each of its characters the span of `source` that it represents.

    Unchanged characters map one to one. Replaced ones (mojibake, an entity, a ligature, a letter with a combining
    accent) map to the whole span that was replaced. Inserted ones map to the character before them.

    Where cleaning the parts of a text gives the same result as cleaning all of it, each part is mapped separately, so
    that a word is never matched with an equal word elsewhere: first the runs between white space, which `clean`
    collapses to one space, then single characters.
    """
    cleaned = clean(source)
    if source == cleaned:
        return cleaned, identity_spans(source)
    runs = list(RUN.finditer(source))
    parts = [clean(run.group()) for run in runs]
    if " ".join(filter(None, parts)) != cleaned:  # mojibake may contain white space
        return cleaned, diff_spans(source, cleaned)
    spans: list[Span] = []
    for run, part in zip(runs, parts, strict=True):
        if part and spans:
            spans.append((run.start() - 1, run.start()))
        spans += [(run.start() + start, run.start() + end) for start, end in run_spans(run.group(), part, clean)]
    return cleaned, spans


def run_spans(source: str, cleaned: str, clean: Callable[[str], str]) -> list[Span]:
    """Return the spans of a run without white space, character by character where that is possible."""
    if source == cleaned:
        return identity_spans(source)
    letters = [clean(char) for char in source]
    if "".join(letters) == cleaned:
        return [(i, i + 1) for i, letter in enumerate(letters) for _ in letter]
    return diff_spans(source, cleaned)


def identity_spans(source: str) -> list[Span]:
    """Return the span of each character of a text that cleaning does not change."""
    return [(i, i + 1) for i in range(len(source))]


def diff_spans(source: str, cleaned: str) -> list[Span]:
    """Return the spans by the longest matching blocks of both texts (difflib)."""
    spans: list[Span] = []
    for kind, start, end, first, last in SequenceMatcher(None, source, cleaned, autojunk=False).get_opcodes():
        if kind == "equal":
            spans += [(i, i + 1) for i in range(start, end)]
        else:
            spans += [(start if end > start else max(start - 1, 0), end)] * (last - first)
    return spans


class TextTokenizer(ABC):
    """Converts texts to token ids. Can be pickled, for the processes of the data loader."""

    context_length: int  # maximum number of ids of a text
    pad_id: int  # fills the rows of a batch
    n_end: int  # number of special tokens at the end of each text

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The largest id plus one."""

    @property
    @abstractmethod
    def definition(self) -> str:
        """Everything that the ids of a text depend on."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text of any length, including special tokens at its start and end.

        Text that looks like a special token is encoded as text.
        """

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of `encode`, and for each id the span [start, end) of characters of `text` that it encodes.

        Special tokens have empty spans.
        """

    def truncate(self, ids: Sequence[int]) -> list[int]:
        """Return at most `context_length` of the ids of a text. The special tokens at its end are kept."""
        if len(ids) <= self.context_length:
            return list(ids)
        return [*ids[: self.context_length - self.n_end], *ids[len(ids) - self.n_end :]]

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids of a row, without special tokens and padding; white space may differ."""

    @abstractmethod
    def words(self) -> list[str]:
        """The tokens of the vocabulary that are complete words, the most frequent first."""

    def __call__(self, texts: str | Iterable[str]) -> Tensor:
        """Return the ids [b l] of texts, truncated to the context and padded with `pad_id` to the longest text.

        A single string is one text, with b = 1.
        """
        texts = [texts] if isinstance(texts, str) else texts
        return pad([self.truncate(self.encode(text)) for text in texts], self.pad_id)


def pad(rows: Sequence[Sequence[int]], value: int = 0, multiple: int = 1, most: int = 0) -> Tensor:
    """Pad rows of ids with `value`, the `pad_id` of their tokenizer, to int64 [b l].

    l is the length of the longest row, rounded up to a multiple but not above `most`, unless that row is longer.
    """
    longest = max(map(len, rows), default=1)  # towers take no texts, but not of no tokens
    return pad_rows(rows, value, min(-(-longest // multiple) * multiple, most))


def pad_rows(rows: Sequence[Sequence[int]], value: int, length: int = 0) -> Tensor:
    """Pad rows of integers with `value` to int64 [b longest], or to `length` if that is more."""
    padded = torch.full((len(rows), max([length, *map(len, rows)])), value, dtype=torch.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return padded
