"""Held-out shards, once through, nothing drawn at random: whole images, captions, and every box with its phrase.

Images are squeezed to a square, as the papers' retrieval does; boxes keep the white border that training gives them.
"""

import logging
import random
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError, prefixed
from common.images import ImageRejected
from common.shards import list_shards
from trainer.data.config import Layout
from trainer.data.crops import Crop, EncodedImage, Region, draw_crop
from trainer.data.index import build_index
from trainer.data.layouts import read_sample
from trainer.data.probe import probe
from trainer.data.samples import BadSample, Box, Sample, open_image, sample_key
from trainer.data.shards import ByteRangeReader
from trainer.text.syntax import Word

logger = logging.getLogger(__name__)

WHOLE: Final = (1.0, 1.0)  # share of the area and ratio of the sides of a "random" crop that is all of a square
NO_NEEDS: Final = frozenset[str]()
ALL_NEEDS: Final = frozenset({"boxes", "parse"})


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """n wholes and m boxes; images are bytes [3 s s]."""

    images: list[Tensor] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    words: list[tuple[Word, ...] | None] = field(default_factory=list)  # parse of each caption, if there is one
    box_images: list[Tensor] = field(default_factory=list)
    box_texts: list[str] = field(default_factory=list)
    box_owner: list[int] = field(default_factory=list)  # the whole of each box


class HeldOutShards:
    """The shards of a place, found once, to be read at each evaluation. Raises UserError for a place without samples."""

    def __init__(self, shards: str) -> None:
        with prefixed("shards: "):
            self.index = build_index(list_shards(shards), "", workers=0)
            self.layout = probe(self.index, "auto", NO_NEEDS)

    def read(self, size_px: int, limit: int = 0) -> HeldOut:
        """The first `limit` good samples (0: all); bad ones are counted in the log. Raises UserError if there is none."""
        reader, held_out, n_bad = ByteRangeReader(), HeldOut(), 0
        for number in range(self.index.n_samples):
            if limit and len(held_out.images) >= limit:
                break
            shard = self.index.locate(number)[0].url
            with prefixed("shards: "):
                span = reader.read([self.index.byte_range(number)])[0]
            try:
                add(held_out, with_all_it_has(span, self.layout), size_px)
            except (BadSample, ImageRejected) as error:
                n_bad += 1
                logger.warning("%s: %s: %s; left out", shard, sample_key(span), error)
        reader.close()
        if not held_out.images:
            raise UserError(f"shards: {shard} and others have no sample that can be read; the log says what is wrong")
        if n_bad:
            logger.warning("shards: %d bad samples left out", n_bad)
        return held_out


def with_all_it_has(span: bytes, layout: Layout) -> Sample:
    """The sample with boxes and parse, or with one of them, or none."""
    for needs in (ALL_NEEDS, frozenset({"boxes"}), frozenset({"parse"})):
        try:
            return read_sample(span, layout, needs)
        except BadSample as bad:
            if bad.reason not in ("no_boxes", "no_parse", "missing_member"):
                raise
    return read_sample(span, layout, NO_NEEDS)


def add(held_out: HeldOut, sample: Sample, size_px: int) -> None:
    """All of a sample or, where an image of it cannot be decoded, none."""
    image = shown(sample.image, sample.image.full_region, sample.pad_to_square, size_px)
    boxes = [box_image(sample, box, size_px) for box in sample.boxes]
    held_out.box_images.extend(boxes)
    held_out.box_texts.extend(box.phrase for box in sample.boxes)
    held_out.box_owner.extend([len(held_out.images)] * len(boxes))
    held_out.images.append(image)
    held_out.captions.append(sample.caption)
    held_out.words.append(sample.words)


def box_image(sample: Sample, box: Box, size_px: int) -> Tensor:
    if box.image is None:
        return shown(sample.image, box.region or sample.image.full_region, sample.pad_to_square, size_px)
    own = open_image(box.image)
    return shown(own, own.full_region, False, size_px)


def shown(image: EncodedImage, region: Region, pad_to_square: bool, size_px: int) -> Tensor:
    """All of a region: squeezed, or in the middle of a white square."""
    everything = Crop(region, Region(0, 0, size_px, size_px))
    crop = draw_crop(random.Random(0), True, size_px, WHOLE, WHOLE, region) if pad_to_square else everything
    out = np.empty((size_px, size_px, 3), np.uint8)
    image.write_crops([crop], [out])
    return torch.from_numpy(out).permute(2, 0, 1)
