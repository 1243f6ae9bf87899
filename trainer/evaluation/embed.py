"""Embed images, texts and words in batches. All results are float32."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from hypergrit_common.samples import Word
from trainer.batch import check_finite
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer, pad
from trainer.text.syntax import align, collate_trees

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class PairFeatures:
    """Features [n d] of images and captions, and [m d] of boxes and phrases, before the lift."""

    image: Tensor
    text: Tensor
    box_image: Tensor
    box_text: Tensor
    owner: Tensor  # [m] index of the sample of each box

    @torch.no_grad()
    def lifted(self, model: DualEncoder) -> dict[str, Tensor]:
        """Lifted points by part: "image" and "text", and "box_image" and "box_text" if there are boxes.

        Raises NotFiniteError.
        """
        device = device_of(model)
        check_finite(torch.cat([self.image, self.box_image]), "images")
        check_finite(torch.cat([self.text, self.box_text]), "texts")
        found = {"image": model.lift_image(self.image.to(device)), "text": model.lift_text(self.text.to(device))}
        if len(self.owner):
            found["box_image"] = model.lift_image(self.box_image.to(device))
            found["box_text"] = model.lift_text(self.box_text.to(device))
        return found


@torch.no_grad()
def embed_texts(model: DualEncoder, tokenizer: TextTokenizer, texts: Iterable[str], batch_size: int) -> Tensor:
    """Return the features [n d] of texts, before the lift."""
    parts = [model.text_features(tokenizer(part).to(device_of(model))).float() for part in batched(texts, batch_size)]
    return torch.cat(parts)


@torch.no_grad()
def embed_images(model: DualEncoder, images: Iterable[Tensor], batch_size: int) -> Tensor:
    """Return the features [n d] of images, uint8 [3 s s], before the lift. Iterators are read one batch at a time."""
    batches = images.split(batch_size) if isinstance(images, Tensor) else map(torch.stack, batched(images, batch_size))
    parts = [model.image_features(part.to(device_of(model))).float() for part in batches]
    return torch.cat(parts)


@torch.no_grad()
def embed_words(
    model: DualEncoder, tokenizer: TextTokenizer, parsed: Iterable[tuple[str, Sequence[Word]]], batch_size: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Lifted words [n d] of parsed captions, by part, as `DualEncoder.word_points` does; relations of edges to heads."""
    found: dict[str, list[Tensor]] = {}
    relations = [torch.zeros(0, dtype=torch.int64)]
    for part in batched(parsed, batch_size):
        ids, trees = zip(*(align(tokenizer, caption, words) for caption, words in part), strict=True)
        syntax, device = collate_trees(trees), device_of(model)
        for name, points in model.word_points(pad(ids, tokenizer.pad_id).to(device), syntax.to(device)).items():
            found.setdefault(name, []).append(points.float())
        is_child = (syntax.head >= 0) & (syntax.head != torch.arange(syntax.head.shape[1]))
        relations.append(syntax.relation[is_child])
    return {name: torch.cat(points) for name, points in found.items()}, torch.cat(relations)


def device_of(model: DualEncoder) -> torch.device:
    """The device of a model's parameters."""
    return model.pixel_mean.device


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Split items into lists of `size`; the last one may be shorter."""
    source = iter(items)
    while part := list(islice(source, size)):
        yield part
