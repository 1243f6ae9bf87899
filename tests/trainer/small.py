"""Small models of every kind, and a small batch for them."""

import dataclasses
from typing import Any

import torch

from trainer.batch import Batch, Losses
from trainer.encoders.config import ImageConfig, TextConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import MODELS, build_model
from trainer.optim.config import OptimConfig
from trainer.optim.optimizer import build_optimizer
from trainer.text.syntax import NONE, RELATIONS, Syntax

NAMES = tuple(MODELS)
END = 63  # id of the end-of-text token


def small_model(name: str, seed: int = 0, **fields: Any) -> DualEncoder:
    """The model `name` with small towers, random weights and the given settings."""
    torch.manual_seed(seed)
    size = {
        "image": ImageConfig(size_px=16, kwargs={"embed_dim": 32, "depth": 1, "num_heads": 2, "patch_size": 8}),
        "text": TextConfig(vocab_size=END + 1, context_length=8, width=32, layers=1, heads=2),
        "embed_dim": 16,
    }
    return build_model(name, MODELS[name].config(**{**size, **fields}))


def small_batch(b: int = 8, seed: int = 0) -> Batch:
    """b random pairs with one box and a dependency tree each."""
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
        syntax=small_trees(b, generator),
    )


def small_trees(b: int, generator: torch.Generator) -> Syntax:
    """Trees of b captions of eight tokens and five words. Words 0 and 3 have two tokens each; word 1 is the root."""
    return Syntax(
        word_of_token=torch.tensor([0, 0, 1, 2, 3, 3, 4, NONE]).repeat(b, 1),
        head=torch.tensor([1, 1, 4, 2, 1]).repeat(b, 1),
        relation=torch.randint(len(RELATIONS), (b, 5), generator=generator),
    )


def rows(batch: Batch, indices: slice | list[int]) -> Batch:
    """The pairs `indices` of a batch with one box per pair, in that order."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    tensors = {name: value[indices] for name, value in values.items() if isinstance(value, torch.Tensor)}
    syntax = None if batch.syntax is None else batch.syntax.map(lambda tensor: tensor[indices])
    return dataclasses.replace(batch, **tensors, syntax=syntax)


def overfit(model: DualEncoder, batch: Batch, steps: int = 60) -> Losses:
    """Train on a single batch and return the losses of the last step."""
    optimizer = build_optimizer(model, OptimConfig(lr=3e-3))
    for _ in range(steps):
        losses: Losses = model(batch)
        optimizer.zero_grad()
        losses.loss.backward()
        optimizer.step()
        model.clamp_parameters()
    return losses
