"""A model of every kind, small enough for a test, and a batch for it."""

from typing import Any

import torch

from trainer.checkpoint import MODELS, build_model
from trainer.dual_encoder import Batch, DualEncoder
from trainer.encoders.image import ImageConfig
from trainer.encoders.text import TextConfig

NAMES = tuple(MODELS)
END = 63


def small_model(name: str, seed: int = 0, **fields: Any) -> DualEncoder:
    torch.manual_seed(seed)
    size = {
        "image": ImageConfig(size_px=16, kwargs={"embed_dim": 32, "depth": 1, "num_heads": 2, "patch_size": 8}),
        "text": TextConfig(vocab_size=END + 1, context_length=8, width=32, layers=1, heads=2),
        "embed_dim": 16,
    }
    return build_model(name, MODELS[name][1](**size, **fields))


def small_batch(b: int = 8, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def tokens(length: int) -> torch.Tensor:
        ids = torch.randint(1, END, (b, length), generator=generator)
        ids[:, -1] = END
        return ids

    return Batch(
        images=torch.rand(b, 3, 16, 16, generator=generator),
        token_ids=tokens(8),
        box_images=torch.rand(b, 3, 16, 16, generator=generator),
        box_token_ids=tokens(5),
    )
