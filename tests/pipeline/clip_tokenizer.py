"""A tiny CLIP tokenizer, in the files of transformers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import CLIPTokenizerFast

MERGES = ("a n", "d o", "do g</w>")


def small_clip_tokenizer(folder: Path, extra: Sequence[str] = (), **options: Any) -> CLIPTokenizerFast:
    """Write and load a tokenizer of letters, the word "dog" and the tokens `extra`, for texts of up to 16 tokens."""
    letters = [chr(c) for c in range(97, 123)]
    merged = [merge.replace(" ", "") for merge in MERGES]
    pieces = [*letters, *(c + "</w>" for c in letters), *merged, *extra, "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES]))
    return CLIPTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16, **options)
