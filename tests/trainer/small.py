"""Small models of every kind, and a small batch for them."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from trainer.batch import Batch, Losses, Stream, named_streams
from trainer.encoders.config import ImageConfig, TextConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import MODELS, build_model
from trainer.optim.config import OptimConfig
from trainer.optim.optimizer import build_optimizer
from trainer.text.syntax import NONE, RELATIONS, Syntax

NAMES = tuple(MODELS)


def most_in_rest(plain: str, names: Iterable[str] = NAMES) -> list[Any]:
    """Parameters of a test by name; those that `plain`, words, does not name have the marker `rest`."""
    return [name if name in plain.split() else pytest.param(name, marks=pytest.mark.rest) for name in names]


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
    """b random pairs with one box, a dependency tree and a chain of labels each."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(length: int) -> torch.Tensor:
        ids = torch.randint(1, END, (b, length), generator=generator)
        ids[:, -1] = END
        return ids

    images, captions = torch.rand(b, 3, 16, 16, generator=generator), tokens(8)
    boxes = {"box_image": torch.rand(b, 3, 16, 16, generator=generator), "box_text": tokens(5)}
    streams = {
        "text": Stream(captions, "text", syntax=small_trees(b, generator)),
        "levels": small_levels(captions),
        "queries": small_queries(captions),
        **named_streams({"image": images, **boxes}),
    }
    return Batch(streams=streams)


def in_double(batch: Batch) -> Batch:
    """The batch with images in float64."""
    images = {name: stream.rows.double() for name, stream in batch.streams.items() if stream.side == "image"}
    return batch.with_rows(images)


def with_boxes(batch: Batch, boxes: Batch | None, owner: torch.Tensor | None = None) -> Batch:
    """The batch with the boxes and phrases of another one, which have these owners; None: without any."""
    streams = {name: stream for name, stream in batch.streams.items() if not name.startswith("box_")}
    if boxes is not None:
        streams |= {name: boxes[name]._replace(owner=owner) for name in ("box_image", "box_text")}
    return dataclasses.replace(batch, streams=streams)


def with_stream(batch: Batch, name: str, stream: Stream | None) -> Batch:
    """The batch with another stream of this name; None: without it."""
    streams = {key: value for key, value in batch.streams.items() if key != name}
    return dataclasses.replace(batch, streams=streams if stream is None else {name: stream, **streams})


def small_queries(token_ids: torch.Tensor) -> Stream:
    """Two queries of each of b pairs: one below the caption [b 8], and one below the first."""
    b = len(token_ids)
    ids = torch.stack([token_ids.roll(1, 1), token_ids.roll(2, 1)], 1).flatten(0, 1)
    parent = torch.stack([torch.full((b,), -1), 2 * torch.arange(b)], 1).flatten()
    weight = torch.tensor([1.0, 0.5]).repeat(b)
    return Stream(ids, "text", torch.arange(b).repeat_interleave(2), chain=2, weight=weight, parent=parent)


def small_levels(token_ids: torch.Tensor) -> Stream:
    """Chains of three labels of b pairs: one of all, one of every two pairs, and the caption [b 8]."""
    b = len(token_ids)
    group = torch.arange(b) // 2
    labels = torch.stack([token_ids[:1].expand(b, -1).roll(1, 1), token_ids[2 * group].roll(2, 1), token_ids], 1)
    numbers = torch.stack([torch.zeros_like(group), 100 + group, 200 + torch.arange(b)], 1)
    owner, depth = torch.arange(b).repeat_interleave(3), torch.arange(3).repeat(b)
    ids, place = labels.flatten(0, 1).unique(dim=0, return_inverse=True)
    return Stream(ids, "text", owner, depth, numbers.flatten(), place, chain=3)


def small_trees(b: int, generator: torch.Generator) -> Syntax:
    """Trees of b captions of eight tokens and five words. Words 0 and 3 have two tokens each; word 1 is the root."""
    return Syntax(
        word_of_token=torch.tensor([0, 0, 1, 2, 3, 3, 4, NONE]).repeat(b, 1),
        head=torch.tensor([1, 1, 4, 2, 1]).repeat(b, 1),
        relation=torch.randint(len(RELATIONS), (b, 5), generator=generator),
    )


def rows(batch: Batch, indices: slice | list[int]) -> Batch:
    """The pairs `indices` of a batch with one box per pair, in that order."""
    n = len(batch["image"].rows)
    return dataclasses.replace(batch, streams={name: owned_rows(s, indices, n) for name, s in batch.streams.items()})


def owned_rows(stream: Stream, indices: slice | list[int], b: int) -> Stream:
    """The rows of a stream that the pairs `indices` of b pairs own, in that order."""
    if stream.owner is None:
        return stream.map(lambda tensor: tensor[indices])
    chosen = torch.arange(b)[indices]
    places = [(stream.owner == pair).nonzero()[:, 0] for pair in chosen]
    chosen_rows = torch.cat([torch.empty(0, dtype=torch.int64), *places])
    facts = {name: getattr(stream, name) for name in ("depth", "label", "place", "weight", "parent")}
    found = stream._replace(**{name: fact[chosen_rows] for name, fact in facts.items() if fact is not None})
    if found.place is None:
        found = found._replace(rows=found.rows[chosen_rows])
    if found.parent is not None:
        at = torch.full((len(stream.rows),), -1).index_put((chosen_rows,), torch.arange(len(chosen_rows)))
        found = found._replace(parent=torch.where(found.parent < 0, found.parent, at[found.parent]))
    lengths = torch.tensor([len(place) for place in places], dtype=torch.int64)
    return found._replace(owner=torch.arange(len(chosen)).repeat_interleave(lengths))


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
