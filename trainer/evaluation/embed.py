"""Images and texts through the towers, batch by batch, to features before the lift [n d]."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from trainer.models.dual_encoder import DualEncoder
from trainer.text.syntax import Word, align, collate_trees
from trainer.text.tokenizer import Tokenizer, pad

Item = TypeVar("Item")


@torch.no_grad()
def embed_texts(model: DualEncoder, tokenizer: Tokenizer, texts: Iterable[str], batch_size: int) -> Tensor:
    """Texts through the text tower; float32."""
    parts = [model.text_features(tokenizer(part).to(device_of(model))).float() for part in chunks(texts, batch_size)]
    return torch.cat(parts)


@torch.no_grad()
def embed_images(model: DualEncoder, images: Iterable[Tensor], batch_size: int) -> Tensor:
    """Bytes [3 s s] each, through the image tower; float32. Only one batch of them is held at a time."""
    parts = [
        model.image_features(torch.stack(part).to(device_of(model))).float() for part in chunks(images, batch_size)
    ]
    return torch.cat(parts)


@torch.no_grad()
def embed_words(
    model: DualEncoder, tokenizer: Tokenizer, parsed: Iterable[tuple[str, Sequence[Word]]], batch_size: int
) -> dict[str, Tensor]:
    """The lifted parts of captions' words that the model's entailments name; float32."""
    parts: dict[str, list[Tensor]] = {}
    for part in chunks(parsed, batch_size):
        ids, trees = zip(*(align(tokenizer, caption, words) for caption, words in part), strict=True)
        device = device_of(model)
        for name, points in model.word_points(pad(ids).to(device), collate_trees(trees).to(device)).items():
            parts.setdefault(name, []).append(points.float())
    return {name: torch.cat(points) for name, points in parts.items()}


def device_of(model: DualEncoder) -> torch.device:
    return model.logit_scale.device


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    source = iter(items)
    while part := list(islice(source, size)):
        yield part
