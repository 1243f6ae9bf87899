"""Features of held-out shards, embedded by all ranks. Pixels are dropped as soon as they are embedded.

Shapes: n samples, m boxes, d embedding width.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.evaluation.embed import PairFeatures, embed_images, embed_texts
from trainer.evaluation.held_out import HeldOut, HeldOutShards, log_bad
from trainer.evaluation.share import Sharing, map_shared
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer
from trainer.text.syntax import Word


@dataclass(frozen=True, kw_only=True)
class HeldOutPoints(PairFeatures):
    """Features, float32 on the CPU, and the captions with their parses."""

    captions: Sequence[str]
    words: Sequence[tuple[Word, ...] | None]
    bad: Sequence[str]


def embed_held_out(
    model: DualEncoder, tokenizer: TextTokenizer, shards: HeldOutShards, limit: int, sharing: Sharing
) -> HeldOutPoints:
    """Embed the first `limit` usable samples (0: all). Collective.

    Raises UserError if there is no usable sample or too many are bad; other errors as in `map_shared`.
    """
    parts, n = [], 0
    compute = partial(embed_part, model=model, tokenizer=tokenizer, sharing=sharing)
    read = partial(read_part, shards=shards, size_px=model.config.image.size_px)
    for part in map_shared(shards.index.n_samples, read, compute, sharing):
        parts.append(part)
        n += len(part.captions)
        if 0 < limit <= n:
            break
    bad = [line for part in parts for line in part.bad]
    log_bad(bad, n, shards.max_bad_share)
    return first(join(parts), limit or n)


class Part(NamedTuple):
    """Some samples, with their images and boxes as one tensor each: workers send few tensors."""

    held_out: HeldOut  # without images
    images: Tensor  # [n 3 s s]
    box_images: Tensor  # [m 3 s s]


def read_part(numbers: Sequence[int], shards: HeldOutShards, size_px: int) -> Part:
    """Read and render the usable samples among `numbers`. Runs in a worker process."""
    found = shards.read_part(numbers, size_px)
    empty = torch.zeros(0, 3, size_px, size_px, dtype=torch.uint8)
    images, box_images = (torch.stack(part) if part else empty for part in (found.images, found.box_images))
    return Part(dataclasses.replace(found, images=[], box_images=[]), images, box_images)


def embed_part(part: Part, *, model: DualEncoder, tokenizer: TextTokenizer, sharing: Sharing) -> HeldOutPoints:
    """Embed some samples."""
    held_out = part.held_out

    def images(found: Tensor) -> Tensor:
        return embed_images(model, found, sharing.batch_size).cpu() if len(found) else empty

    def texts(found: Sequence[str]) -> Tensor:
        return embed_texts(model, tokenizer, found, sharing.batch_size).cpu() if found else empty

    empty = torch.zeros(0, model.config.embed_dim)
    with sharing.precision():
        return HeldOutPoints(
            image=images(part.images),
            text=texts(held_out.captions),
            box_image=images(part.box_images),
            box_text=texts(held_out.box_texts),
            owner=torch.tensor(held_out.box_owner, dtype=torch.int64),
            captions=held_out.captions,
            words=held_out.words,
            bad=held_out.bad,
        )


def join(parts: Sequence[HeldOutPoints]) -> HeldOutPoints:
    """All parts, in order."""
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part.captions))
    return HeldOutPoints(
        image=torch.cat([part.image for part in parts]),
        text=torch.cat([part.text for part in parts]),
        box_image=torch.cat([part.box_image for part in parts]),
        box_text=torch.cat([part.box_text for part in parts]),
        owner=torch.cat([part.owner + start for part, start in zip(parts, starts, strict=False)]),
        captions=[caption for part in parts for caption in part.captions],
        words=[words for part in parts for words in part.words],
        bad=[line for part in parts for line in part.bad],
    )


def first(points: HeldOutPoints, n: int) -> HeldOutPoints:
    """The first n samples with their boxes."""
    is_kept = points.owner < n
    return HeldOutPoints(
        image=points.image[:n],
        text=points.text[:n],
        box_image=points.box_image[is_kept],
        box_text=points.box_text[is_kept],
        owner=points.owner[is_kept],
        captions=points.captions[:n],
        words=points.words[:n],
        bad=points.bad,
    )
