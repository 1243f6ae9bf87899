"""A GLIP of a few thousand weights and a vocabulary of one's own, for tests."""

from dataclasses import replace
from pathlib import Path

import torch

from pipeline.ground.glip.config import MINIATURE, GlipConfig, SwinConfig
from pipeline.ground.glip.model import Glip

WORDS = [
    "a",
    "the",
    "red",
    "blue",
    "dog",
    "cat",
    "two",
    "dogs",
    "on",
    "sofa",
    "tennis",
    "rack",
    "person",
    ".",
    ",",
    "-",
]
PIECES = ["##et", "##s", *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]

TINY = replace(
    MINIATURE,
    backbone=SwinConfig(embed_dim=16, depths=(2, 2, 2, 2), heads=(1, 2, 2, 4), window=4, drop_path=0.0),
    text=replace(MINIATURE.text, vocab_size=128, hidden_size=32, heads=2, intermediate_size=64, max_tokens=32),
    head=replace(MINIATURE.head, channels=32, rounds=2, fuse_width=32, fuse_heads=2, norm_groups=8),
    detect=replace(MINIATURE.detect, short_side_px=96, max_side_px=192, min_class_prob=0.0, max_boxes=10),
)


def write_vocab(folder: Path) -> Path:
    """vocab.txt of the words above."""
    path = folder / "vocab.txt"
    pieces = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *PIECES])
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return path


def tiny_model(config: GlipConfig = TINY, seed: int = 0) -> Glip:
    """A network with random weights whose logits differ from cell to cell."""
    torch.manual_seed(seed)
    return Glip(config).eval()
