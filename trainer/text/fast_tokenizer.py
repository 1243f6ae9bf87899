"""Tokenizers of transformers: the fast ones, which are pipelines of the library `tokenizers`.

A text is encoded as by transformers, with one difference: text that looks like a special token, such as "[SEP]", is
encoded as text, because captions are untrusted.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import tokenizers

from hypergrit_common.files import check_file
from hypergrit_common.json_file import parse_object
from hypergrit_common.model_files import TOKENIZER, check_model, check_normalizer, loading, panics_as_errors
from trainer.text.base import Span, TextTokenizer

UNUSED: Final = -1
"""`pad_id` of a tokenizer without a padding token, or whose padding token also ends texts, as in CLIP."""
STARTS: Final = "Ġ▁"
"""Marks at the start of a word, in byte-level encodings and in those of SentencePiece."""
CONTINUATION: Final = "##"
END_OF_WORD: Final = "</w>"


class FastTokenizer(TextTokenizer):
    """A tokenizer from its `definition`, the JSON of a pipeline.

    Raises ValueError if it is not such a pipeline, or if its special tokens fill the context.
    """

    def __init__(self, definition: str, pad_id: int, context_length: int) -> None:
        self._definition, self.pad_id, self.context_length = definition, pad_id, context_length
        try:
            with panics_as_errors():
                self.pipeline = tokenizers.Tokenizer.from_str(definition)
                self.pipeline.no_truncation()
                self.pipeline.no_padding()
                self.pipeline.encode_special_tokens = True
                encoded = self.pipeline.encode("a")
        except Exception as error:  # the library raises no other type
            raise ValueError(f"the tokenizer cannot be read: {error}") from error
        marks = encoded.special_tokens_mask
        self.marks = {index for index, is_special in zip(encoded.ids, marks, strict=True) if is_special}
        self.n_end = [*marks[::-1], 0].index(0)
        if self.n_end == len(marks):
            raise ValueError("the tokenizer has no tokens for the letter 'a'; give the tokenizer of a text encoder")
        if sum(marks) >= context_length:
            raise ValueError(
                f"the tokenizer adds {sum(marks)} special tokens, which fill a context of {context_length}; give a "
                "longer one"
            )

    def __reduce__(self) -> tuple[type, tuple[str, int, int]]:
        return FastTokenizer, (self._definition, self.pad_id, self.context_length)

    @property
    def vocab_size(self) -> int:
        return max(self.pipeline.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def definition(self) -> str:
        return self._definition

    def encode(self, text: str) -> list[int]:
        return self.encode_with_offsets(text)[0]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        with panics_as_errors():
            found = self.pipeline.encode(text)
        return (found.ids, found.offsets) if found.ids else ([0], [(0, 0)])  # a text has at least one token

    def decode(self, ids: Iterable[int]) -> str:
        found = [index for index in ids if index not in self.marks and index != self.pad_id]
        return str(self.pipeline.decode(found)).replace(END_OF_WORD, " ").strip()

    def words(self) -> list[str]:
        ids = self.pipeline.get_vocab(with_added_tokens=False)
        pieces = sorted(ids, key=lambda piece: ids[piece])
        for found in (
            [piece.removesuffix(END_OF_WORD) for piece in pieces if piece.endswith(END_OF_WORD)],
            [piece[1:] for piece in pieces if piece[:1] in STARTS],
        ):
            if found:
                break
        else:
            found = [piece for piece in pieces if not piece.startswith(CONTINUATION)]
        return list(dict.fromkeys(word.lower() for word in found if word))


def read_fast_tokenizer(folder: Path, context_length: int) -> FastTokenizer:
    """Read the tokenizer in a folder that transformers has saved. Nothing is downloaded, and no code of the folder runs.

    Raises ValueError if the folder has no fast tokenizer, and OSError if it cannot be read.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is no folder; give one with the tokenizer's files, which are never downloaded"
        )
    check_model(str(folder))
    from transformers import AutoTokenizer  # imported here, because it takes seconds

    try:
        with panics_as_errors():
            found: Any = AutoTokenizer.from_pretrained(str(folder), **loading(str(folder)))
    except Exception as error:  # its type depends on the file that is missing or damaged
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        raise ValueError(
            f"{folder} has no tokenizer that transformers can read ({reason}); save one there with save_pretrained"
        ) from error
    if not getattr(found, "is_fast", False):
        raise ValueError(
            f"{folder} has a {type(found).__name__}, which is no fast tokenizer; convert it to {TOKENIZER} with transformers"
        )
    # Without truncation and padding, so that the definition does not depend on earlier calls.
    values = {**json.loads(found.backend_tokenizer.to_str()), "truncation": None, "padding": None}
    definition = json.dumps(values, ensure_ascii=False)
    padding = UNUSED if found.pad_token_id is None else int(found.pad_token_id)
    tokenizer = FastTokenizer(definition, padding, context_length)
    if padding in tokenizer.encode(""):
        tokenizer.pad_id = UNUSED
    return tokenizer


def load_fast_tokenizer(path: Path, pad_id: int, context_length: int) -> FastTokenizer:
    """Read a file of `write_fast_tokenizer`. Raises ValueError if it is no tokenizer, OSError if it cannot be read."""
    check_file(path)
    try:
        definition = path.read_text(encoding="utf-8")
        check_normalizer(parse_object(definition, "its definition"), "it")
        return FastTokenizer(definition, pad_id, context_length)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_fast_tokenizer(tokenizer: FastTokenizer, path: Path) -> None:
    """Write a tokenizer as a tokenizer.json, the format of transformers."""
    path.write_text(tokenizer.definition, encoding="utf-8")
