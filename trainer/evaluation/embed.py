"""Images and texts through the towers, batch by batch, to features before the lift [n d]."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from trainer.dual_encoder import DualEncoder
from trainer.tokenizer import Tokenizer

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


def device_of(model: DualEncoder) -> torch.device:
    return model.logit_scale.device


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    source = iter(items)
    while part := list(islice(source, size)):
        yield part
