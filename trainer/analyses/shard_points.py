"""Features of the images, captions, boxes and phrases of held-out shards, for analyses.

Images are read when they are embedded, and not kept. Whole images are resized to a square without keeping their
proportions; boxes keep the white border that they have in training.

Shapes: n samples, m boxes, d width of the features.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from hypergrit_common.images import ImageRejected
from hypergrit_common.samples import BadSample, Sample, Word
from schemas.training import Layout
from trainer.data.index import SampleIndex
from trainer.data.shards import ByteRangeReader
from trainer.evaluation.embed import PairFeatures
from trainer.evaluation.held_out.shards import HeldOutShards, read_available, render
from trainer.evaluation.task import Embedder, ImageSource, MissingFilesError

HELD_OUT: Final = "held_out"
"""Folder of the shards below the data folder."""
CACHED_SAMPLES: Final = 64
MAX_DAMAGED: Final = 0.1
"""Largest share of damaged shards, if they are several."""


@dataclass(frozen=True, kw_only=True)
class ShardContent:
    """Texts of n samples with m boxes, and where their images are."""

    images: list[ImageSource] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    words: list[tuple[Word, ...] | None] = field(default_factory=list)
    levels: list[tuple[str | None, ...]] = field(default_factory=list)
    box_images: list[ImageSource] = field(default_factory=list)
    box_texts: list[str] = field(default_factory=list)
    box_owner: list[int] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class ShardPoints(PairFeatures):
    """Features, and the texts that they belong to."""

    images: list[ImageSource]
    captions: list[str]
    phrases: list[str]
    words: list[tuple[Word, ...] | None]
    skipped: dict[str, int]


class ShardImages:
    """The images and boxes of shards by number, rendered when they are asked for: RGB [s s 3].

    Raises OSError for an image that cannot be decoded, as for a file that cannot be read.
    """

    def __init__(self, index: SampleIndex, layout: Layout, size_px: int) -> None:
        self.index, self.layout, self.size_px = index, layout, size_px
        self.places: list[tuple[int, int | None]] = []  # number of the sample and of the box; None: the whole image
        self.sample = lru_cache(CACHED_SAMPLES)(self._read)

    def add(self, number: int, box: int | None) -> int:
        """Return the number of an image: that of a sample, or of one of its boxes."""
        self.places.append((number, box))
        return len(self.places) - 1

    def __getitem__(self, place: int) -> NDArray[np.uint8]:
        number, box = self.places[place]
        try:
            sample = self.sample(number)
            pixels = render(sample, None if box is None else sample.boxes[box], self.size_px)
        except (BadSample, ImageRejected) as error:
            raise OSError(str(error)) from error
        return pixels.permute(1, 2, 0).contiguous().numpy()

    def _read(self, number: int) -> Sample:
        reader = ByteRangeReader()
        try:
            return read_available(reader.read([self.index.byte_range(number)])[0], self.layout)
        finally:
            reader.close()


def read_shards(root: Path, size_px: int, limit: int = 0, name: str = HELD_OUT) -> ShardContent:
    """Read the texts of the first `limit` usable samples (0: all) of the shards in the folder `name` below `root`.

    Raises MissingFilesError without shards, and UserError if more than a tenth of them are damaged.
    """
    folder = root / name
    try:
        shards = HeldOutShards(str(folder))
    except UserError as error:
        if any(folder.rglob("*.tar")):
            raise
        raise MissingFilesError(
            f"held-out shards: expected {folder}/00000.tar in a layout of training shards: {error}"
        ) from error
    images, content = ShardImages(shards.index, shards.layout, size_px), ShardContent()
    if damaged := shards.index.damaged:
        if len(damaged) > max(1, MAX_DAMAGED * len(shards.index.urls)):
            raise UserError(
                f"{len(damaged)} of the {len(shards.index.urls)} shards of {folder} are damaged, such as {damaged[0].url}: "
                f"{damaged[0].problem}; create or download them again"
            )
        content.skipped["damaged shard"] = len(damaged)
    for number, sample in samples(images, content.skipped):
        if limit and len(content.captions) >= limit:
            break
        content.box_owner.extend([len(content.captions)] * len(sample.boxes))
        content.box_texts.extend(box.phrase for box in sample.boxes)
        content.box_images.extend(
            ImageSource(path=folder, index=images.add(number, box), stack=images) for box in range(len(sample.boxes))
        )
        content.images.append(ImageSource(path=folder, index=images.add(number, None), stack=images))
        content.captions.append(sample.caption)
        content.words.append(sample.words)
        content.levels.append(sample.levels)
    return content


def samples(images: ShardImages, skipped: Counter[str]) -> Iterator[tuple[int, Sample]]:
    """Yield the readable samples with their numbers; count the others in `skipped`, by reason."""
    for number in range(images.index.n_samples):
        sample = None
        try:
            with suppress(ImageRejected):
                sample = images.sample(number)
        except BadSample as error:
            skipped[error.reason] += 1
            continue
        if sample is None:
            skipped["undecodable_image"] += 1
        else:
            yield number, sample


def embed_shards(embedder: Embedder, root: Path, limit: int = 0) -> ShardPoints:
    """Embed the first `limit` samples (0: all) of ROOT/held_out. Images that cannot be read are skipped with their texts.

    Raises MissingFilesError without shards, or if no image can be read.
    """
    return embed_content(embedder, read_shards(root, embedder.model.config.image.size_px, limit), root)


def embed_content(embedder: Embedder, content: ShardContent, root: Path) -> ShardPoints:
    """Embed what `read_shards` has read. Raises MissingFilesError if no image can be read."""
    found, boxes = embedder.images(content.images, "squeeze"), embedder.images(content.box_images, "squeeze")
    keep = torch.ones(len(content.images), dtype=torch.bool)
    keep[list(found.errors)] = False
    if not keep.any():
        reason = next(iter(found.errors.values()), "there are no samples")
        raise MissingFilesError(f"held-out shards: no sample of {root / HELD_OUT} can be read: {reason}")
    owner = torch.tensor(content.box_owner, dtype=torch.int64)
    keep_box = keep[owner]
    keep_box[list(boxes.errors)] = False
    new_number = keep.cumsum(0) - 1
    images = [image for image, kept in zip(content.images, keep.tolist(), strict=True) if kept]
    captions = [caption for caption, kept in zip(content.captions, keep.tolist(), strict=True) if kept]
    phrases = [phrase for phrase, kept in zip(content.box_texts, keep_box.tolist(), strict=True) if kept]
    skipped = content.skipped + Counter(
        {"unreadable image": int((~keep).sum()), "unreadable box": int((~keep_box).sum())}
    )
    text = embedder.texts([*captions, *phrases])
    return ShardPoints(
        image=found.features[keep],
        text=text[: len(captions)],
        box_image=boxes.features[keep_box],
        box_text=text[len(captions) :],
        owner=new_number[owner[keep_box]],
        images=images,
        captions=captions,
        phrases=phrases,
        words=[words for words, kept in zip(content.words, keep.tolist(), strict=True) if kept],
        skipped=dict(skipped),
    )
