"""Held-out shards for retrieval and entailment: full images, captions, and every box with its phrase.

Nothing is drawn at random. Full images are resized to a square without keeping their proportions, as in the papers'
retrieval. Boxes keep the white border that they have in training.
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
from trainer.data.indexing import build_index
from trainer.data.layouts import read_sample
from trainer.data.probe import probe
from trainer.data.samples import BadSample, Box, Sample, open_image, sample_key
from trainer.data.shards import ByteRangeReader
from trainer.text.syntax import Word

logger = logging.getLogger(__name__)

FULL: Final = (1.0, 1.0)
"""Range of area and of proportions with which a "random" crop is the full square."""
NO_NEEDS: Final = frozenset[str]()
ALL_NEEDS: Final = frozenset({"boxes", "parse"})


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The content of held-out shards: n samples with m boxes in total. Images are uint8 [3 s s]."""

    images: list[Tensor] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    words: list[tuple[Word, ...] | None] = field(default_factory=list)  # parse of each caption, None without one
    box_images: list[Tensor] = field(default_factory=list)
    box_texts: list[str] = field(default_factory=list)
    box_owner: list[int] = field(default_factory=list)  # index of the sample of each box


class HeldOutShards:
    """Held-out shards, listed once and read at each evaluation. Raises UserError if there are no samples."""

    def __init__(self, shards: str) -> None:
        with prefixed("shards: "):
            self.index = build_index(list_shards(shards))
            self.layout = probe(self.index, "auto", NO_NEEDS)

    def read(self, size_px: int, limit: int = 0) -> HeldOut:
        """Read the first `limit` usable samples (0: all). Unusable ones are skipped and logged.

        Raises UserError if there is no usable sample.
        """
        reader, held_out, n_bad = ByteRangeReader(), HeldOut(), 0
        for number in range(self.index.n_samples):
            if limit and len(held_out.images) >= limit:
                break
            shard = self.index.locate(number)[0].url
            with prefixed("shards: "):
                data = reader.read([self.index.byte_range(number)])[0]
            try:
                append_sample(held_out, read_available(data, self.layout), size_px)
            except (BadSample, ImageRejected) as error:
                n_bad += 1
                logger.warning("%s: sample %s is skipped: %s", shard, sample_key(data), error)
        reader.close()
        if not held_out.images:
            raise UserError(
                f"shards: no sample can be read from {shard} or the other shards; the log lists the reasons"
            )
        if n_bad:
            logger.warning("shards: %d bad sample%s skipped", n_bad, "s" if n_bad > 1 else "")
        return held_out


def read_available(data: bytes, layout: Layout) -> Sample:
    """Read a sample with boxes and parse, or with those of the two that it has. Raises BadSample if it is damaged."""
    for needs in (ALL_NEEDS, frozenset({"boxes"}), frozenset({"parse"})):
        try:
            return read_sample(data, layout, needs)
        except BadSample as bad:
            if bad.reason not in ("no_boxes", "no_parse", "missing_member"):
                raise
    return read_sample(data, layout, NO_NEEDS)


def append_sample(held_out: HeldOut, sample: Sample, size_px: int) -> None:
    """Append a sample with all its boxes. Raises ImageRejected, and appends nothing, if an image cannot be decoded."""
    image = render(sample.image, sample.image.full_region, sample.pad_to_square, size_px)
    boxes = [render_box(sample, box, size_px) for box in sample.boxes]
    held_out.box_images.extend(boxes)
    held_out.box_texts.extend(box.phrase for box in sample.boxes)
    held_out.box_owner.extend([len(held_out.images)] * len(boxes))
    held_out.images.append(image)
    held_out.captions.append(sample.caption)
    held_out.words.append(sample.words)


def render_box(sample: Sample, box: Box, size_px: int) -> Tensor:
    """The image of a box: its own file if the sample has one, else its region of the full image."""
    if box.image is None:
        return render(sample.image, box.region or sample.image.full_region, sample.pad_to_square, size_px)
    image = open_image(box.image)
    return render(image, image.full_region, False, size_px)


def render(image: EncodedImage, region: Region, pad_to_square: bool, size_px: int) -> Tensor:
    """A region as uint8 [3 s s]: centred on a white square if `pad_to_square`, else resized to the square."""
    resized = Crop(region, Region(0, 0, size_px, size_px))
    crop = draw_crop(random.Random(0), True, size_px, FULL, FULL, region) if pad_to_square else resized
    out = np.empty((size_px, size_px, 3), np.uint8)
    image.write_crops([crop], [out])
    return torch.from_numpy(out).permute(2, 0, 1)
