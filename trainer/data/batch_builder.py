"""Build batches from samples: read, crop, tokenize and collate.

Every random choice (box, crop, subreddit prefix, replacement of a bad sample) depends only on the seed and on the
position of the sample, so all processes build the same batch.

Shapes: b pairs, m boxes, s side of an image in pixels, l tokens.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count, islice
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypergrit_common.images import Image, ImageRejected
from hypergrit_common.layouts import read_sample
from hypergrit_common.samples import MAX_SAMPLE_BYTES, BadSample, Box, Content, Sample, open_image, sample_key
from trainer.batch import Batch, Stream
from trainer.data.config import AugmentConfig, DataConfig
from trainer.data.crops import augment, draw_crop, write_crops
from trainer.data.index import SampleIndex
from trainer.data.order import Draw, Order
from trainer.data.runs import RunReader, run_length
from trainer.data.subreddits import Segmenter
from trainer.data.text_streams import Texts, needed_streams
from trainer.text.base import TextTokenizer, pad
from trainer.text.syntax import WordTree, align, collate_trees

MAX_ATTEMPTS: Final = 256  # samples tried for one row of a batch, before the data count as unusable
FAR_ATTEMPTS: Final = 8  # of them, those with samples far from the batch; more reach all samples of the epoch
MAX_REPORTED: Final = 8  # bad samples that the report of a batch lists


@dataclass
class BatchReport:
    """Statistics and errors of building one batch."""

    # "samples", "boxes", "equal_phrases" (phrases with the tokens of their captions), "tokens" and the "token_places" that padded
    # texts take, and "bad/REASON" for each reason
    counts: Counter[str] = field(default_factory=Counter)
    bad_samples: list[str] = field(default_factory=list)  # `SHARD: KEY: REASON: DETAIL` of the first bad samples
    error: str = ""  # message for the user if the batch could not be built


@dataclass
class BatchRows:
    """The rows of a batch under construction."""

    images: Image  # [b s s 3]
    keys: list[str] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    box_images: list[Image] = field(default_factory=list)  # m images [s s 3]; views of `boxes` if it is set
    boxes: Image | None = None  # [b s s 3], of which the first m are set, if every pair has one box at most
    trees: list[WordTree] = field(default_factory=list)
    texts: list[Texts] = field(default_factory=list)


class Candidate(NamedTuple):
    """A sample that may become a row: its shard, its name for messages, and its files or a reason not to read them."""

    shard: str
    name: str
    data: Content | BadSample


@dataclass(kw_only=True)
class RowBuilder:
    """Builds batches of samples, wherever their files come from."""

    config: DataConfig
    tokenizer: TextTokenizer
    size_px: int
    needs: frozenset[str]

    def __post_init__(self) -> None:
        self.segmenter = Segmenter(self.tokenizer)  # for the samples that have a subreddit, in whatever layout
        self.streams = needed_streams(self.needs)

    def fill(self, position: int, rows_candidates: Sequence[Iterator[Candidate]]) -> tuple[Batch, BatchReport]:
        """Return the batch of the first usable candidate of each row, and a report.

        `position` is the position of the first sample. If too many samples are bad, the batch is empty and the report has
        an `error`.
        """
        rows = BatchRows(self.empty_images(len(rows_candidates)))
        if "boxes" in self.needs and self.config.boxes == "random":
            rows.boxes = self.empty_images(len(rows_candidates))
        report = BatchReport()
        for row, candidates in enumerate(rows_candidates):
            for attempt, (shard, name, data) in enumerate(islice(candidates, MAX_ATTEMPTS)):
                generator = random.Random(f"{self.config.seed}:{position + row}:{attempt}")
                try:
                    if isinstance(data, BadSample):
                        raise data
                    self.add_sample(rows, row, read_sample(data, self.config.layout, self.needs), shard, generator)
                    break
                except BadSample as bad:
                    report.counts[f"bad/{bad.reason}"] += 1
                    if len(report.bad_samples) < MAX_REPORTED:
                        key = sample_key(data) if isinstance(data, bytes) else ""
                        report.bad_samples.append(f"{shard}: {key or name}: {bad}")
            else:
                report.error = (
                    f"{MAX_ATTEMPTS} bad samples in a row, among them {report.bad_samples[-1]}; "
                    f"fix or replace the shards"
                )
                return Batch(streams={}), report
        report.counts["samples"] += len(rows_candidates)
        return self.collate(rows, report.counts), report

    def empty_images(self, n: int) -> Image:
        return np.empty((n, self.size_px, self.size_px, 3), np.uint8)

    def add_sample(self, rows: BatchRows, row: int, sample: Sample, shard: str, generator: random.Random) -> None:
        """Crop and tokenize a sample of a shard into a row.

        Raises BadSample if an image is damaged; `rows` is then unchanged except for the pixels of that row.
        """
        sample = self.draw_caption(sample, generator)
        caption = self.prefixed_caption(sample, generator)
        boxes, first = self.choose_boxes(sample.boxes, generator), len(rows.box_images)
        empty = self.empty_images(len(boxes)) if rows.boxes is None else rows.boxes[first : first + len(boxes)]
        box_images = list(empty)
        self.write_crops(sample, boxes, [rows.images[row], *box_images], generator)
        if sample.words is None:
            rows.ids.append(self.token_ids(caption))
        else:
            ids, tree = align(self.tokenizer, caption, sample.words)
            rows.ids.append(ids)
            rows.trees.append(tree)
        rows.keys.append(f"{shard.rpartition('/')[2]}/{sample.key}")
        rows.box_images += box_images
        rows.texts.append(Texts(caption, [box.phrase for box in boxes], sample.levels))

    def draw_caption(self, sample: Sample, generator: random.Random) -> Sample:
        """Return a sample with one of its captions, as `data.captions` and `data.caption_weights` select."""
        if self.config.captions == "first" or not sample.captions:
            return sample
        weights = [self.config.caption_weights.get(caption.kind, 1.0) for caption in sample.captions]
        chosen = generator.choices(sample.captions, weights)[0] if any(weights) else sample.captions[0]
        return dataclasses.replace(sample, caption=chosen.text, words=chosen.words)

    def prefixed_caption(self, sample: Sample, generator: random.Random) -> str:
        """Return the caption, with the words of its subreddit in front with probability `subreddit_probability`.

        A caption with a parse gets no prefix, because the offsets in the parse count from the start of the caption.
        """
        if sample.subreddit is None or sample.words is not None:
            return sample.caption
        if generator.random() >= self.config.subreddit_probability:
            return sample.caption
        return f"{self.segmenter.segment(sample.subreddit)} : {sample.caption}"

    def choose_boxes(self, boxes: Sequence[Box], generator: random.Random) -> Sequence[Box]:
        """Return all boxes, `data.max_boxes` of them, or a random one, as `data.boxes` selects."""
        if self.config.boxes == "random":
            return [generator.choice(boxes)] if boxes else boxes
        most = len(boxes) if self.config.max_boxes is None else self.config.max_boxes
        if self.config.box_order == "first" or len(boxes) <= most:
            return boxes[:most]
        return [boxes[i] for i in sorted(generator.sample(range(len(boxes)), most))]

    def write_crops(
        self, sample: Sample, boxes: Sequence[Box], outs: Sequence[Image], generator: random.Random
    ) -> None:
        """Write random crops of the image and of each box to `outs`, each [s s 3].

        The sample's image is decoded once for all its crops. Raises BadSample if an image is damaged.
        """
        image, config = sample.image, self.config
        draw = partial(draw_crop, generator, sample.pad_to_square, self.size_px, config.crop_scale, config.crop_ratio)
        crops, crop_outs = [draw(image.full_region)], [outs[0]]  # crops of the sample's image
        try:
            for box, out in zip(boxes, outs[1:], strict=True):
                if box.image is None:
                    crops.append(draw(box.region or image.full_region))
                    crop_outs.append(out)
                else:
                    box_image = open_image(box.image)
                    write_crops(box_image, [draw(box_image.full_region)], [out])
            write_crops(image, crops, crop_outs)
        except ImageRejected as error:
            raise BadSample("undecodable_image", str(error)) from error
        if config.augment != AugmentConfig():  # drawn after all crops, which are the same without it
            for out in outs:
                augment(out, config.augment, generator)

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of a text, truncated to the context."""
        return self.tokenizer.truncate(self.tokenizer.encode(text))

    def collate(self, rows: BatchRows, counts: Counter[str]) -> Batch:
        """Return the batch, and count its tokens. Images are [* 3 s s] in channels-last memory format."""

        def padded(ids: Sequence[Sequence[int]]) -> Tensor:
            # Lengths that take few values compile once, and fragment no memory.
            found = pad(ids, self.tokenizer.pad_id, self.config.text_multiple or 1, self.tokenizer.context_length)
            counts.update(tokens=sum(map(len, ids)), token_places=found.numel())
            return found

        def texts(ids: Sequence[Sequence[int]]) -> Stream:
            found = Stream(padded(ids), "text")
            if not self.config.pack_texts:
                return found
            packed = places_of(ids, found.rows.shape[1])
            counts["token_places"] += len(packed) - found.rows.numel()
            return found._replace(packed=packed)

        text = texts(rows.ids)
        if "parse" in self.needs:
            text = text._replace(syntax=collate_trees(rows.trees, text.rows.shape[1]))
        encode, streams = cache(self.token_ids), {"text": text}
        for name, kind in self.streams.items():
            streams[name] = kind.stream(
                rows.texts, lambda found: padded([encode(text) for _, text in found]), lambda text: tuple(encode(text))
            )
        streams["image"] = Stream(to_channels_first(rows.images), "image")
        if "boxes" in self.needs:
            parts = [self.empty_images(0), *(image[None] for image in rows.box_images)]
            boxes = np.concatenate(parts) if rows.boxes is None else rows.boxes[: len(rows.box_images)]
            phrases = [(row, encode(phrase)) for row, sample in enumerate(rows.texts) for phrase in sample.phrases]
            has_owners = self.config.boxes == "all" or "pairs" in self.needs
            owner = torch.tensor([row for row, _ in phrases], dtype=torch.int64) if has_owners else None
            equal = torch.tensor([ids == rows.ids[row] for row, ids in phrases], dtype=torch.bool)
            streams["box_image"] = Stream(to_channels_first(boxes), "image", owner)
            streams["box_text"] = texts([ids for _, ids in phrases])._replace(owner=owner, equal=equal)
            counts.update(boxes=len(phrases), equal_phrases=int(equal.sum()))
        return Batch(streams=streams, keys=tuple(rows.keys))


@dataclass(kw_only=True)
class BatchBuilder(RowBuilder):
    """Builds the batch at a given position. Can be pickled."""

    index: SampleIndex
    order: Order
    reader: RunReader = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reader = RunReader(self.index)

    def plan_reads(self, batch: int, world_size: int, workers: int) -> None:
        """Choose how many samples one request reads, for `workers` processes that build batches of this size."""
        self.reader.length = run_length(self.order, self.index.mean_bytes, batch, world_size, workers)

    def build(self, position: int, draw: Draw) -> tuple[Batch, BatchReport]:
        """Return the batch of the samples of `draw`, and a report.

        `position` is the position of the first sample. A bad sample is replaced by `replacement`. If too many are bad,
        the batch is empty and the report has an `error`. Raises UserError if a shard cannot be read.
        """
        samples: list[int] = draw.samples.tolist()
        contents = self.reader.read_parts(samples, draw.ahead.tolist())
        rows = [self.candidates(position + row, sample, contents) for row, sample in enumerate(samples)]
        return self.fill(position, rows)

    def candidates(self, position: int, sample: int, contents: Iterator[bytes]) -> Iterator[Candidate]:
        """Yield a sample, the next of `contents`, and those that replace it, one after the other."""
        yield self.candidate(sample, next(contents))
        for attempt in count(1):
            sample = self.replacement(position, attempt)
            yield self.candidate(sample, self.reader.read([sample])[0])

    def candidate(self, sample: int, data: bytes) -> Candidate:
        """A sample of the index, which is bad if it is too large to be read."""
        content: bytes | BadSample = data
        if self.index.n_bytes(sample) > MAX_SAMPLE_BYTES:
            content = BadSample("too_large", f"the sample has more than {MAX_SAMPLE_BYTES} bytes")
        return Candidate(self.index.url(sample), str(sample), content)

    def replacement(self, position: int, attempt: int) -> int:
        """Return the sample that replaces a bad one at `position`: another one of its epoch, at a random distance.

        The distance is equal for all positions of the epoch and, in the first attempts, a quarter to three quarters of it.
        So a batch of less than a quarter of the epoch holds a sample twice only if samples need several attempts.
        """
        n = self.order.n_samples
        epoch, place = divmod(position, n)
        least = n // 4 if attempt <= FAR_ATTEMPTS else 0
        distance = random.Random(f"{self.config.seed}:{epoch}:{attempt}").randrange(least, n - least)
        return int(self.order.take(epoch * n + (place + distance) % n, 1).samples[0])


def places_of(ids: Sequence[Sequence[int]], length: int) -> Tensor:
    """The places [t] of the tokens of texts in their padded rows of `length` tokens, one row after the other."""
    ends = torch.tensor([len(row) for row in ids], dtype=torch.int64)
    return (torch.arange(length) < ends[:, None]).flatten().nonzero()[:, 0]


def to_channels_first(pixels: Image) -> Tensor:
    """View images [n s s 3] as a tensor [n 3 s s] in the same memory."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)
