"""Samples to tensors: the crops, the ids, and the batch they make. What is drawn depends on seed and place alone.

Shapes: b pairs, m boxes, s side of an image in pixels, l tokens.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.images import Image, ImageRejected
from trainer.data.config import DataConfig, Layout
from trainer.data.crops import draw_cut
from trainer.data.index import Index
from trainer.data.samples import BadSample, Box, Sample, key_of, open_picture, read_sample
from trainer.data.shards import SpanReader
from trainer.data.subreddits import Segmenter
from trainer.text.syntax import WordTree, align, collate_trees
from trainer.text.tokenizer import Tokenizer, pad

SPARES: Final = 256  # samples tried for one place; so many bad ones in a row are no accident
REPORTED: Final = 8  # bad samples that a batch names


@dataclass
class Report:
    """What happened on the way to one batch."""

    counts: Counter[str] = field(default_factory=Counter)  # samples, and bad ones by reason
    lines: list[str] = field(default_factory=list)  # shard/key: reason: detail
    error: str = ""  # why there is no batch


@dataclass
class Rows:
    """The rows of a batch while it is filled."""

    images: Image  # [b s s 3]
    keys: list[str] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    box_images: list[Image] = field(default_factory=list)  # m of [s s 3]; views of `boxes`, if each pair has one
    boxes: Image | None = None  # [b s s 3]
    box_ids: list[list[int]] = field(default_factory=list)
    box_owner: list[int] = field(default_factory=list)
    trees: list[WordTree] = field(default_factory=list)


@dataclass(kw_only=True)
class BatchBuilder:
    """Makes the batch of any places, in any process."""

    config: DataConfig
    layout: Layout
    index: Index
    tokenizer: Tokenizer
    size_px: int
    needs: frozenset[str]
    reader: SpanReader = field(default_factory=SpanReader)

    def __post_init__(self) -> None:
        self.segmenter = Segmenter(self.tokenizer) if self.layout == "pairs" else None

    def make(self, place: int, samples: NDArray[np.int64]) -> tuple[dict[str, Any], Report]:
        """Fields of the Batch of `samples`, which stand at `place` and after. A bad one is replaced by another."""
        rows = Rows(self.blank(len(samples)))
        if "boxes" in self.needs and self.config.boxes == "random":
            rows.boxes = self.blank(len(samples))
        report, taken = Report(), set(map(int, samples))
        spans = self.reader.read([self.index.span(int(sample)) for sample in samples])
        for row, sample in enumerate(samples):
            span, chosen = spans[row], int(sample)
            for attempt in range(SPARES):
                generator = random.Random(f"{self.config.seed}:{place + row}:{attempt}")
                if attempt:
                    chosen = self.spare(generator, taken)
                    span = self.reader.read([self.index.span(chosen)])[0]
                try:
                    self.add(rows, row, read_sample(span, self.layout, self.needs), chosen, generator)
                    break
                except BadSample as bad:
                    report.counts[f"bad/{bad.reason}"] += 1
                    if len(report.lines) < REPORTED:
                        report.lines.append(f"{self.describe(chosen, span)}: {bad}")
            else:
                report.error = f"{SPARES} bad samples one after the other, the last: {report.lines[-1]}"
                return {}, report
        report.counts["samples"] += len(samples)
        return self.collate(rows), report

    def blank(self, n: int) -> Image:
        return np.empty((n, self.size_px, self.size_px, 3), np.uint8)

    def spare(self, generator: random.Random, taken: set[int]) -> int:
        """Any other sample, not of this batch if that can be."""
        free = self.index.n_samples > 2 * len(taken)
        while True:
            sample = generator.randrange(self.index.n_samples)
            if not free or sample not in taken:
                taken.add(sample)
                return sample

    def describe(self, sample: int, span: bytes) -> str:
        """Shard and key, for messages."""
        return f"{self.index.locate(sample)[0].url}: {key_of(span)}"

    def add(self, rows: Rows, row: int, sample: Sample, number: int, generator: random.Random) -> None:
        """Draw and cut one sample into its row. Raises BadSample, with `rows` as it was but for the pixels."""
        caption = self.caption(sample, generator)
        boxes = self.choose(sample.boxes, generator)
        box_images = list(self.blank(len(boxes)) if rows.boxes is None else rows.boxes[row : row + 1])
        self.cut(sample, boxes, [rows.images[row], *box_images], generator)
        if sample.words is None:
            rows.ids.append(self.encode(caption))
        else:
            ids, tree = align(self.tokenizer, caption, sample.words)
            rows.ids.append(ids)
            rows.trees.append(tree)
        rows.keys.append(f"{self.index.locate(number)[0].name}/{sample.key}")
        rows.box_images += box_images
        rows.box_ids += [self.encode(box.phrase) for box in boxes]
        rows.box_owner += [row] * len(boxes)

    def caption(self, sample: Sample, generator: random.Random) -> str:
        """With the name of the subreddit before it, now and then; a parse counts from the caption's own beginning."""
        if sample.subreddit is None or sample.words is not None or self.segmenter is None:
            return sample.caption
        if generator.random() >= self.config.subreddit_probability:
            return sample.caption
        return f"{self.segmenter.segment(sample.subreddit)} : {sample.caption}"

    def choose(self, boxes: Sequence[Box], generator: random.Random) -> Sequence[Box]:
        return boxes if self.config.boxes == "all" or not boxes else [generator.choice(boxes)]

    def cut(self, sample: Sample, boxes: Sequence[Box], outs: Sequence[Image], generator: random.Random) -> None:
        """The crops of the image and of each box to `outs` [s s 3]. What is cut from one image is decoded once."""
        picture, config = sample.picture, self.config
        draw = partial(draw_cut, generator, sample.on_square, self.size_px, config.crop_scale, config.crop_ratio)
        cuts, places = [draw(picture.whole)], [outs[0]]
        try:
            for box, out in zip(boxes, outs[1:], strict=True):
                if box.image is None:
                    cuts.append(draw(box.region or picture.whole))
                    places.append(out)
                else:
                    own = open_picture(box.image)
                    own.write([draw(own.whole)], [out])
            picture.write(cuts, places)
        except ImageRejected as error:
            raise BadSample("undecodable_image", str(error)) from error

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.cut(self.tokenizer.encode(text))

    def collate(self, rows: Rows) -> dict[str, Any]:
        """Fields of trainer.batch.Batch. Images are [* 3 s s] with the channels last in memory."""
        batch: dict[str, Any] = {
            "images": to_images(rows.images),
            "token_ids": pad(rows.ids),
            "keys": tuple(rows.keys),
        }
        if "boxes" in self.needs:
            batch["box_images"] = to_images(np.stack(rows.box_images) if rows.boxes is None else rows.boxes)
            batch["box_token_ids"] = pad(rows.box_ids)
            if self.config.boxes == "all":
                batch["box_owner"] = torch.tensor(rows.box_owner)
        if "parse" in self.needs:
            batch["syntax"] = collate_trees(rows.trees)
        return batch


def to_images(pixels: Image) -> Tensor:
    """[n s s 3] to [n 3 s s], the same memory."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)
