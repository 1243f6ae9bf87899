"""A CLIP tokenizer of a few pieces, in the files that transformers saves."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import CLIPTokenizerFast

MERGES = ("a n", "d o", "do g</w>")


def small_clip_tokenizer(folder: Path, extra: Sequence[str] = (), **options: Any) -> CLIPTokenizerFast:
    """Letters, the word "dog" and the pieces of `extra`, for texts of 16 tokens; its files lie in `folder`."""
    letters = [chr(c) for c in range(97, 123)]
    merged = [merge.replace(" ", "") for merge in MERGES]
    pieces = [*letters, *(c + "</w>" for c in letters), *merged, *extra, "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES]))
    return CLIPTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16, **options)
