"""The interface of tokenizers: CLIP's (`trainer.text.tokenizer`) and those of transformers (`fast_tokenizer`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trainer.text.offsets import Span


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


def pad(rows: Sequence[Sequence[int]], value: int = 0) -> Tensor:
    """Pad rows of ids with `value`, the `pad_id` of their tokenizer, to int64 [b l]."""
    ids = torch.full((len(rows), max(map(len, rows), default=0)), value, dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    return ids
