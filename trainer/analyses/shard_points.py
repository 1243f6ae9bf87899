"""Features of the images, captions, boxes and phrases of held-out shards, for analyses.

Images are read when they are embedded, and not kept. Whole images are resized to a square without keeping their
proportions; boxes keep the white border that they have in training.

Shapes: n samples, m boxes, d width of the features.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from hypergrit_common.images import ImageRejected
from hypergrit_common.samples import BadSample, Sample, Word
from trainer.evaluation.embed import PairFeatures
from trainer.evaluation.held_out.shards import HeldOutShards, render
from trainer.evaluation.task import Embedder, ImageSource, MissingFilesError

HELD_OUT: Final = "held_out"
"""Folder of the shards below the data folder."""
CACHED_SAMPLES: Final = 64
MAX_DAMAGED: Final = 0.1
"""Largest share of damaged shards, if they are several."""


class ShardRow(NamedTuple):
    """The texts of a sample, and where its images are."""

    image: ImageSource
    caption: str
    words: tuple[Word, ...] | None
    levels: tuple[str | None, ...]
    boxes: list[tuple[ImageSource, str]]  # with their phrases


class ShardContent(NamedTuple):
    """Samples, and the numbers of those that are not used, by reason."""

    rows: list[ShardRow]
    skipped: Counter[str]


@dataclass(frozen=True, kw_only=True)
class ShardPoints(PairFeatures):
    """Features, and the texts that they belong to."""

    images: list[ImageSource]
    captions: list[str]
    phrases: list[str]
    skipped: dict[str, int]


class ShardImages:
    """The images and boxes of shards by number, rendered when they are asked for: RGB [s s 3].

    Raises OSError for an image that cannot be decoded, as for a file that cannot be read.
    """

    def __init__(self, shards: HeldOutShards, size_px: int) -> None:
        self.size_px = size_px
        self.places: list[tuple[int, int | None]] = []  # number of the sample and of the box; None: the whole image
        self.sample = lru_cache(CACHED_SAMPLES)(shards.read_sample)

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
    images, content = ShardImages(shards, size_px), ShardContent([], Counter())
    if damaged := shards.index.damaged:
        if len(damaged) > max(1, MAX_DAMAGED * len(shards.index.urls)):
            raise UserError(
                f"{len(damaged)} of the {len(shards.index.urls)} shards of {folder} are damaged, such as {damaged[0].url}: "
                f"{damaged[0].problem}; create or download them again"
            )
        content.skipped["damaged shard"] = len(damaged)
    for number, sample in samples(images, shards.index.n_samples, content.skipped):
        if limit and len(content.rows) >= limit:
            break
        places = (*range(len(sample.boxes)), None)
        *boxes, whole = (ImageSource(path=folder, index=images.add(number, box), stack=images) for box in places)
        phrases = [box.phrase for box in sample.boxes]
        pairs = list(zip(boxes, phrases, strict=True))
        content.rows.append(ShardRow(whole, sample.caption, sample.words, sample.levels, pairs))
    return content


def samples(images: ShardImages, n: int, skipped: Counter[str]) -> Iterator[tuple[int, Sample]]:
    """Yield the readable ones of n samples with their numbers; count the others in `skipped`, by reason."""
    for number in range(n):
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
    every = [(number, *box) for number, row in enumerate(content.rows) for box in row.boxes]
    found = embedder.images([row.image for row in content.rows], "squeeze")
    boxes = embedder.images([image for _, image, _ in every], "squeeze")
    kept = [number for number in range(len(content.rows)) if number not in found.errors]
    if not kept:
        reason = next(iter(found.errors.values()), "there are no samples")
        raise MissingFilesError(f"held-out shards: no sample of {root / HELD_OUT} can be read: {reason}")
    place = {number: row for row, number in enumerate(kept)}
    kept_boxes = [box for box, (number, *_) in enumerate(every) if number in place and box not in boxes.errors]
    skipped = content.skipped + Counter(
        {"unreadable image": len(content.rows) - len(kept), "unreadable box": len(every) - len(kept_boxes)}
    )
    captions, phrases = [content.rows[number].caption for number in kept], [every[box][2] for box in kept_boxes]
    text = embedder.texts([*captions, *phrases])
    return ShardPoints(
        image=found.features[kept],
        text=text[: len(captions)],
        box_image=boxes.features[kept_boxes],
        box_text=text[len(captions) :],
        owner=torch.tensor([place[every[box][0]] for box in kept_boxes], dtype=torch.int64),
        images=[content.rows[number].image for number in kept],
        captions=captions,
        phrases=phrases,
        skipped=dict(skipped),
    )
