"""A small GLIP with random weights and a vocabulary for it."""

from dataclasses import replace
from pathlib import Path

import torch

from pipeline.stages.ground.glip.config import MINIATURE, GlipConfig, SwinConfig
from pipeline.stages.ground.glip.model import Glip

WORDS = [
    "a", "the", "red", "blue", "dog", "cat", "two", "dogs", "on", "sofa", "tennis", "rack", "person", ".", ",", "-",
]  # fmt: skip
PIECES = ["##et", "##s", *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]

TINY = replace(
    MINIATURE,
    backbone=SwinConfig(embed_dim=16, depths=(2, 2, 2, 2), heads=(1, 2, 2, 4), window=4),
    text=replace(MINIATURE.text, vocab_size=128, hidden_size=32, heads=2, intermediate_size=64, max_tokens=32),
    head=replace(MINIATURE.head, channels=32, rounds=2, fuse_width=32, fuse_heads=2, norm_groups=8),
    detect=replace(MINIATURE.detect, short_side_px=96, max_side_px=192, min_class_prob=0.0, max_boxes=10),
)


def write_vocab(folder: Path) -> Path:
    """Write a vocab.txt with the words above, letters and a few suffixes."""
    path = folder / "vocab.txt"
    pieces = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *PIECES])
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return path


def tiny_model(config: GlipConfig = TINY, seed: int = 0) -> Glip:
    """Build a network with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return Glip(config).eval()
