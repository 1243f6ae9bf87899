"""Held-out shards for retrieval and entailment: full images, captions, and every box with its phrase.

Nothing is drawn at random. Full images are resized to a square without keeping their proportions, as in the papers'
retrieval. Boxes keep the white border that they have in training.
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.images import ImageRejected
from hypergrit_common.layouts import read_sample
from hypergrit_common.locations import Locations
from hypergrit_common.samples import BadSample, Box, Region, Sample, Word, open_image, sample_key
from hypergrit_common.shards import list_shards
from hypergrit_common.text import counted
from trainer.data.config import DataConfig
from trainer.data.crops import Crop, draw_crop, write_crops
from trainer.data.indexing import build_index
from trainer.data.loader import check_damaged_shards
from trainer.data.probe import probe
from trainer.data.shards import ByteRangeReader
from trainer.evaluation.embed import PairFeatures, embed_images, embed_texts
from trainer.evaluation.held_out.share import Sharing, map_shared
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer

logger = logging.getLogger(__name__)

FULL: Final = (1.0, 1.0)
"""Range of area and of proportions with which a "random" crop is the full square."""
RATIO: Final = DataConfig.crop_ratio
NO_NEEDS: Final = frozenset[str]()
MAX_LOGGED: Final = 20
ALL_NEEDS: Final = frozenset({"boxes", "parse"})


class Views(NamedTuple):
    """The views of an image: the first is that of evaluation, the others are random crops."""

    n: int = 1
    scale: tuple[float, float] = FULL  # range of the crops' areas
    seed: int = 0

    def generators(self, number: int) -> list[random.Random | None]:
        """A generator for each random view of a sample; None for the first."""
        return [None, *(random.Random(f"{self.seed}:{number}:{view}") for view in range(1, self.n))]


@dataclass(kw_only=True)
class HeldOut:
    """The content of held-out shards: n samples with m boxes in total. Images are uint8 [3 s s], by sample and view."""

    images: Tensor  # [n 3 s s]
    box_images: Tensor  # [m 3 s s]
    keys: list[str] = field(default_factory=list)  # SHARD/KEY
    captions: list[str] = field(default_factory=list)
    words: list[tuple[Word, ...] | None] = field(default_factory=list)  # parse of each caption, None without one
    levels: list[tuple[str | None, ...]] = field(default_factory=list)  # labels of a taxonomy, as in `Sample`
    box_texts: list[str] = field(default_factory=list)
    box_owner: list[int] = field(default_factory=list)  # index of the sample of each box
    bad: list[str] = field(default_factory=list)  # `SHARD: sample KEY is skipped: REASON` of the other samples
    reasons: list[str] = field(default_factory=list)  # REASON of each of them


ONE_VIEW: Final = Views()


class HeldOutShards:
    """Held-out shards, listed once and read at each evaluation.

    Raises UserError if there are no samples, or if a larger share than `max_bad_share`, the value of the setting `key` if
    it has one, of the shards is damaged.
    """

    def __init__(self, shards: Locations, max_bad_share: float = 1.0, key: str = "") -> None:
        self.max_bad_share = max_bad_share
        with prefixed("shards: "):
            self.index = build_index(list_shards(shards))
            check_damaged_shards(self.index, max_bad_share, key)
            probe(self.index, "auto", NO_NEEDS)

    def read_sample(self, number: int) -> Sample:
        """Read a sample by itself. Raises BadSample if it is damaged, and UserError for a lost shard."""
        reader = ByteRangeReader()
        try:
            return read_available(reader.read([self.index.byte_range(number)])[0])
        finally:
            reader.close()

    def read_part(self, numbers: Sequence[int], size_px: int, views: Views = ONE_VIEW) -> HeldOut:
        """Read and render the usable samples among `numbers`, each with all its boxes. The others are listed in `bad`.

        Raises UserError for a lost shard.
        """
        empty = torch.zeros(0, 3, size_px, size_px, dtype=torch.uint8)
        reader, found = ByteRangeReader(), HeldOut(images=empty, box_images=empty)
        images: list[Tensor] = []
        box_images: list[Tensor] = []
        for number in numbers:
            with prefixed("shards: "):
                data = reader.read([self.index.byte_range(number)])[0]
            shard, crops = self.index.url(number), views.generators(number)
            try:
                sample = read_available(data)
                whole = [render(sample, None, size_px, view, views.scale) for view in crops]
                boxes = [render(sample, box, size_px, view, views.scale) for box in sample.boxes for view in crops]
            except (BadSample, ImageRejected) as error:
                found.bad.append(f"{shard}: sample {sample_key(data)} is skipped: {error}")
                found.reasons.append(error.reason if isinstance(error, BadSample) else "undecodable_image")
                continue
            images += whole
            box_images += boxes
            found.box_owner += [len(found.captions)] * len(sample.boxes)
            found.box_texts += [box.phrase for box in sample.boxes]
            found.captions.append(sample.caption)
            found.words.append(sample.words)
            found.levels.append(sample.levels)
            found.keys.append(f"{shard.rpartition('/')[2]}/{sample.key}")
        reader.close()
        found.images, found.box_images = (torch.stack(part) if part else empty for part in (images, box_images))
        return found


def log_bad(bad: Sequence[str], n_usable: int, limit: float) -> None:
    """Log the samples that are not usable. Raises UserError if no sample is usable, or more than `limit` are not."""
    for line in bad[:MAX_LOGGED]:
        logger.warning("%s", line)
    if not n_usable:
        raise UserError(f"shards: no sample can be read, such as {bad[0] if bad else 'none'}; create the shards again")
    n_read = len(bad) + n_usable
    if len(bad) > limit * n_read:
        raise UserError(
            f"shards: {len(bad)} of the {n_read} samples read are bad, more than a share of {limit}, such as {bad[0]}; "
            "create the shards again"
        )
    if bad:
        logger.warning("shards: %s skipped", counted(len(bad), "bad sample"))


def read_available(data: bytes) -> Sample:
    """Read a sample with boxes and parse, or with those of the two that it has. Raises BadSample if it is damaged."""
    for needs in (ALL_NEEDS, frozenset({"boxes"}), frozenset({"parse"})):
        try:
            return read_sample(data, "auto", needs)
        except BadSample as bad:
            if bad.reason not in ("no_boxes", "no_parse", "missing_member"):
                raise
    return read_sample(data, "auto", NO_NEEDS)


def render(
    sample: Sample,
    box: Box | None,
    size_px: int,
    view: random.Random | None = None,
    scale: tuple[float, float] = FULL,
) -> Tensor:
    """The image of a sample or of one of its boxes, uint8 [3 s s]: on a white square if padded, else squeezed to it.

    The image of a box is its own file if the sample has one, else its region of the full image. A view is a random crop,
    of the area `scale` and the proportions of training (`data.crop_ratio`). Raises ImageRejected for a damaged image.
    """
    image, region, pad_to_square = sample.image, sample.image.full_region, sample.pad_to_square
    if box and box.image is not None:
        image = open_image(box.image)
        region, pad_to_square = image.full_region, False
    elif box:
        region = box.region or region
    if view is not None:
        crop = draw_crop(view, pad_to_square, size_px, scale, RATIO, region)
    elif pad_to_square:
        crop = draw_crop(random.Random(0), True, size_px, FULL, FULL, region)
    else:
        crop = Crop(region, Region(0, 0, size_px, size_px))
    out = np.empty((size_px, size_px, 3), np.uint8)
    write_crops(image, [crop], [out])
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
    read = partial(shards.read_part, size_px=model.config.image.size_px)
    for part in map_shared(shards.index.n_samples, read, compute, sharing):
        parts.append(part)
        n += len(part.captions)
        if 0 < limit <= n:
            break
    found = join(parts, limit or n)
    log_bad(found.bad, n, shards.max_bad_share)
    return found


def embed_part(part: HeldOut, *, model: DualEncoder, tokenizer: TextTokenizer, sharing: Sharing) -> HeldOutPoints:
    """Embed some samples."""

    def images(found: Tensor) -> Tensor:
        return embed_images(model, found, sharing.batch_size).cpu() if len(found) else empty

    def texts(found: Sequence[str]) -> Tensor:
        return embed_texts(model, tokenizer, found, sharing.batch_size).cpu() if found else empty

    empty = torch.zeros(0, model.config.embed_dim)
    with sharing.precision():
        return HeldOutPoints(
            image=images(part.images),
            text=texts(part.captions),
            box_image=images(part.box_images),
            box_text=texts(part.box_texts),
            owner=torch.tensor(part.box_owner, dtype=torch.int64),
            captions=part.captions,
            words=part.words,
            bad=part.bad,
        )


def join(parts: Sequence[HeldOutPoints], n: int) -> HeldOutPoints:
    """The first n samples of all parts, with their boxes."""
    starts = accumulate((len(part.captions) for part in parts), initial=0)
    owner = torch.cat([part.owner + start for part, start in zip(parts, starts, strict=False)])
    kept, names = owner < n, ("image", "text", "box_image", "box_text")
    image, text, box_image, box_text = (torch.cat([getattr(part, name) for part in parts]) for name in names)
    return HeldOutPoints(
        image=image[:n],
        text=text[:n],
        box_image=box_image[kept],
        box_text=box_text[kept],
        owner=owner[kept],
        captions=[caption for part in parts for caption in part.captions][:n],
        words=[words for part in parts for words in part.words][:n],
        bad=[line for part in parts for line in part.bad],
    )
