"""Small models with an embedder, and data folders with held-out shards of invented samples."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

from tests.trainer.data.samples import write_tar
from tests.trainer.small import small_model
from trainer.evaluation.embedder import CachedEmbedder
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import build_model
from trainer.text.tokenizer import Tokenizer

SIDE = 16


def model_and_tokenizer(name: str, **fields: Any) -> tuple[DualEncoder, Tokenizer]:
    """A small model with random weights and a vocabulary of single bytes, and its tokenizer."""
    tokenizer = Tokenizer([], context_length=24)
    config = small_model(name, **fields).config
    text = replace(config.text, vocab_size=tokenizer.vocab_size, context_length=24)
    torch.manual_seed(0)
    return build_model(name, replace(config, text=text)), tokenizer


def small_embedder(name: str, folder: Path, **fields: Any) -> CachedEmbedder:
    """The embedder of a small model, with a cache in `folder`."""
    return CachedEmbedder(*model_and_tokenizer(name, **fields), folder / "cache", workers=1)


def picture(seed: int, side: int = SIDE) -> bytes:
    """A PNG of random pixels."""
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    PIL.Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def parse_of(caption: str) -> list[dict[str, Any]]:
    """A tree in which every word depends on the last one."""
    tokens, start = [], 0
    words = caption.split(" ")
    for word in words:
        dep = "ROOT" if len(tokens) == len(words) - 1 else "compound"
        tokens.append({"start": start, "end": start + len(word), "head": len(words) - 1, "dep": dep})
        start += len(word) + 1
    return tokens


def write_shards(
    root: Path, n: int = 6, boxes: bool = True, parse: bool = False, damaged: int | None = None, box_damaged: int = -1
) -> None:
    """Write ROOT/held_out/00000.tar with n samples; sample i has 1 + i % 2 boxes.

    The image of the sample `damaged` and the first box of the sample `box_damaged` cannot be decoded.
    """
    samples = []
    for i in range(n):
        caption = f"blue kite {i}"
        count = 1 + i % 2 if boxes else 0
        members = {"child.jpg": picture(i), "child.txt": caption.encode(), "numparents.txt": str(count).encode()}
        for box in range(count):
            members[f"parent{box:03d}.jpg"] = b"no image" if (i, box) == (box_damaged, 0) else picture(100 * i + box)
            members[f"parent{box:03d}.txt"] = f"kite {i} {box}".encode()
        if parse:
            members["json"] = json.dumps({"caption": caption, "tokens": parse_of(caption)}).encode()
        if i == damaged:
            members["child.jpg"] = b"not an image"
        samples.append((f"{i:03d}", members))
    write_tar(root / "held_out" / "00000.tar", samples)
