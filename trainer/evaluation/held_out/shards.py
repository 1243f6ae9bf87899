"""Held-out shards for retrieval and entailment: full images, captions, and every box with its phrase.

Nothing is drawn at random. Full images are resized to a square without keeping their proportions, as in the papers'
retrieval. Boxes keep the white border that they have in training.
"""

import dataclasses
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.images import ImageRejected
from hypergrit_common.shards import list_shards
from hypergrit_common.text import counted
from trainer.data.config import DataConfig, Layout
from trainer.data.crops import Crop, EncodedImage, Region, draw_crop
from trainer.data.indexing import build_index
from trainer.data.layouts import probe, read_sample
from trainer.data.loader import check_damaged_shards
from trainer.data.samples import BadSample, Box, Sample, open_image, sample_key
from trainer.data.shards import ByteRangeReader
from trainer.evaluation.embed import PairFeatures, embed_images, embed_texts
from trainer.evaluation.held_out.share import Sharing, map_shared
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer
from trainer.text.syntax import Word

logger = logging.getLogger(__name__)

FULL: Final = (1.0, 1.0)
"""Range of area and of proportions with which a "random" crop is the full square."""
RATIO: Final = DataConfig.crop_ratio
NO_NEEDS: Final = frozenset[str]()
MAX_LOGGED: Final = 20
LIMIT: Final = "the evaluation's max_bad_share"
ALL_NEEDS: Final = frozenset({"boxes", "parse"})


class Views(NamedTuple):
    """The views of an image: the first is that of evaluation, the others are random crops."""

    n: int = 1
    scale: tuple[float, float] = FULL  # range of the crops' areas
    seed: int = 0

    def generators(self, number: int) -> list[random.Random | None]:
        """A generator for each random view of a sample; None for the first."""
        return [None, *(random.Random(f"{self.seed}:{number}:{view}") for view in range(1, self.n))]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The content of held-out shards: n samples with m boxes in total. Images are uint8 [3 s s], by sample and view."""

    keys: list[str] = field(default_factory=list)  # SHARD/KEY
    images: list[Tensor] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    words: list[tuple[Word, ...] | None] = field(default_factory=list)  # parse of each caption, None without one
    box_images: list[Tensor] = field(default_factory=list)
    box_texts: list[str] = field(default_factory=list)
    box_owner: list[int] = field(default_factory=list)  # index of the sample of each box
    bad: list[str] = field(default_factory=list)  # `SHARD: sample KEY is skipped: REASON` of the other samples
    reasons: list[str] = field(default_factory=list)  # REASON of each of them

    def extend(self, other: "HeldOut") -> None:
        """Append the samples of `other`."""
        self.box_owner.extend(len(self.captions) + owner for owner in other.box_owner)
        for name in ("keys", "images", "captions", "words", "box_images", "box_texts", "bad", "reasons"):
            getattr(self, name).extend(getattr(other, name))


ONE_VIEW: Final = Views()


class HeldOutShards:
    """Held-out shards, listed once and read at each evaluation.

    Raises UserError if there are no samples, or if a larger share than `max_bad_share` of the shards is damaged.
    """

    def __init__(self, shards: str, max_bad_share: float = 1.0) -> None:
        self.max_bad_share = max_bad_share
        with prefixed("shards: "):
            self.index = build_index(list_shards(shards))
            check_damaged_shards(self.index, max_bad_share, LIMIT)
            self.layout = probe(self.index, "auto", NO_NEEDS)

    def read_part(self, numbers: Sequence[int], size_px: int, views: Views = ONE_VIEW) -> HeldOut:
        """Read the usable samples among `numbers`. The others are listed in `bad`. Raises UserError for a lost shard."""
        reader, held_out = ByteRangeReader(), HeldOut()
        for number in numbers:
            with prefixed("shards: "):
                data = reader.read([self.index.byte_range(number)])[0]
            shard = self.index.url(number)
            try:
                sample = read_available(data, self.layout)
                append_sample(held_out, sample, size_px, views.generators(number), views.scale)
                held_out.keys.append(f"{shard.rpartition('/')[2]}/{sample.key}")
            except (BadSample, ImageRejected) as error:
                held_out.bad.append(f"{shard}: sample {sample_key(data)} is skipped: {error}")
                held_out.reasons.append(error.reason if isinstance(error, BadSample) else "undecodable_image")
        reader.close()
        return held_out

    def read(self, size_px: int, limit: int = 0) -> HeldOut:
        """Read the first `limit` usable samples (0: all) into memory. Errors as in `read_part` and `log_bad`."""
        held_out = HeldOut()
        for number in range(self.index.n_samples):
            if limit and len(held_out.captions) >= limit:
                break
            held_out.extend(self.read_part([number], size_px))
        log_bad(held_out.bad, len(held_out.captions), self.max_bad_share)
        return held_out


def log_bad(bad: Sequence[str], n_usable: int, limit: float) -> None:
    """Log the samples that are not usable. Raises UserError if no sample is usable, or more than `limit` are not."""
    for line in bad[:MAX_LOGGED]:
        logger.warning("%s", line)
    if not n_usable:
        raise UserError(f"shards: no sample can be read, such as {bad[0] if bad else 'none'}; create the shards again")
    n_read = len(bad) + n_usable
    if len(bad) > limit * n_read:
        raise UserError(
            f"shards: {len(bad)} of the {n_read} samples read are bad, more than {LIMIT}={limit}, such as {bad[0]}; "
            "create the shards again, or raise it"
        )
    if bad:
        logger.warning("shards: %s skipped", counted(len(bad), "bad sample"))


def read_available(data: bytes, layout: Layout) -> Sample:
    """Read a sample with boxes and parse, or with those of the two that it has. Raises BadSample if it is damaged."""
    for needs in (ALL_NEEDS, frozenset({"boxes"}), frozenset({"parse"})):
        try:
            return read_sample(data, layout, needs)
        except BadSample as bad:
            if bad.reason not in ("no_boxes", "no_parse", "missing_member"):
                raise
    return read_sample(data, layout, NO_NEEDS)


def append_sample(
    held_out: HeldOut,
    sample: Sample,
    size_px: int,
    views: Sequence[random.Random | None] = (None,),
    scale: tuple[float, float] = FULL,
) -> None:
    """Append a sample with all its boxes, each in the views of these generators; None is the view of evaluation.

    Raises ImageRejected, and appends nothing, if an image cannot be decoded.
    """
    images = [
        render(sample.image, sample.image.full_region, sample.pad_to_square, size_px, view, scale) for view in views
    ]
    boxes = [render_box(sample, box, size_px, view, scale) for box in sample.boxes for view in views]
    held_out.box_images.extend(boxes)
    held_out.box_texts.extend(box.phrase for box in sample.boxes)
    held_out.box_owner.extend([len(held_out.captions)] * len(sample.boxes))
    held_out.images.extend(images)
    held_out.captions.append(sample.caption)
    held_out.words.append(sample.words)


def render_box(
    sample: Sample,
    box: Box,
    size_px: int,
    view: random.Random | None = None,
    scale: tuple[float, float] = FULL,
) -> Tensor:
    """The image of a box: its own file if the sample has one, else its region of the full image."""
    if box.image is None:
        region = box.region or sample.image.full_region
        return render(sample.image, region, sample.pad_to_square, size_px, view, scale)
    image = open_image(box.image)
    return render(image, image.full_region, False, size_px, view, scale)


def render(
    image: EncodedImage,
    region: Region,
    pad_to_square: bool,
    size_px: int,
    view: random.Random | None = None,
    scale: tuple[float, float] = FULL,
) -> Tensor:
    """A region as uint8 [3 s s]: centred on a white square if `pad_to_square`, else resized to the square.

    A view is a random crop of it, of the area `scale` and the proportions of training (`data.crop_ratio`).
    """
    if view is not None:
        crop = draw_crop(view, pad_to_square, size_px, scale, RATIO, region)
    elif pad_to_square:
        crop = draw_crop(random.Random(0), True, size_px, FULL, FULL, region)
    else:
        crop = Crop(region, Region(0, 0, size_px, size_px))
    out = np.empty((size_px, size_px, 3), np.uint8)
    image.write_crops([crop], [out])
    return torch.from_numpy(out).permute(2, 0, 1)


# Features of held-out shards, embedded by all ranks. Pixels are dropped as soon as they are embedded.
#
# Shapes: n samples, m boxes, d embedding width.


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


def read_part(numbers: Sequence[int], shards: HeldOutShards, size_px: int, views: Views = ONE_VIEW) -> Part:
    """Read and render the usable samples among `numbers`. Runs in a worker process."""
    found = shards.read_part(numbers, size_px, views)
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
