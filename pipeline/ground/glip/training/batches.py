"""Batches for training: examples of shards in random order, decoded, augmented and collated."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from common.errors import UserError
from common.images import STORED_IMAGE_LIMITS, ImageRejected, decode
from pipeline.ground.glip.config import GlipConfig
from pipeline.ground.glip.text import Prompter
from pipeline.ground.glip.training.config import GlipTrainConfig
from pipeline.ground.glip.training.examples import Batch, Example, LabelledPhrase, collate
from pipeline.ground.glip.training.index import IndexedExample
from pipeline.ground.glip.training.shards import StoredExample, read_images
from pipeline.ground.grounder import Span, prefetch

SORTED_BATCHES: Final = 16  # number of batches drawn together and sorted by image size, to reduce padding


def load_batches(
    examples: Sequence[IndexedExample],
    prompter: Prompter,
    model_config: GlipConfig,
    config: GlipTrainConfig,
    start: int,
) -> Iterator[Batch]:
    """Yield batches without end, starting with batch `start`. A thread loads the next batch in advance.

    The random numbers of a batch depend only on its index and `config.seed`. Raises UserError if an image cannot be
    read.
    """

    def load(item: tuple[int, list[IndexedExample]]) -> Batch:
        index, drawn = item
        rng = np.random.default_rng([config.seed, 1, index])
        default = model_config.detect.short_side_px
        short_side = int(rng.choice(config.short_sides)) if config.short_sides else default
        detect = replace(model_config.detect, short_side_px=short_side)
        loaded = load_examples([example.stored for example in drawn])
        loaded = [mirror(example) if rng.random() < config.flip else example for example in loaded]
        return collate(loaded, prompter, replace(model_config, detect=detect))

    return prefetch(load, enumerate(draw_batches(examples, config.batch_size, config.seed, start), start=start))


def draw_batches(
    examples: Sequence[IndexedExample], size: int, seed: int, start: int
) -> Iterator[list[IndexedExample]]:
    """Yield batches of `size` examples without end, starting with batch `start`.

    The order of the examples changes with each epoch and depends only on `seed` and the epoch. Raises UserError if
    there are fewer than `size` examples.
    """
    per_epoch = len(examples) // size
    if not per_epoch:
        raise UserError(
            f"the shards hold {len(examples)} usable examples, fewer than batch_size={size}; "
            "give more shards or a smaller batch_size"
        )
    epoch, first = divmod(start, per_epoch)
    while True:
        yield from _draw_epoch(examples, size, seed, epoch)[first:]
        epoch, first = epoch + 1, 0


def _draw_epoch(examples: Sequence[IndexedExample], size: int, seed: int, epoch: int) -> list[list[IndexedExample]]:
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(examples)).tolist()
    batches: list[list[IndexedExample]] = []
    for start in range(0, len(order) - len(order) % size, SORTED_BATCHES * size):
        drawn = sorted(order[start : start + SORTED_BATCHES * size], key=lambda i: examples[i].padded_size)
        batches += [[examples[i] for i in drawn[k : k + size]] for k in range(0, len(drawn) - len(drawn) % size, size)]
    return [batches[i] for i in rng.permutation(len(batches)).tolist()]


def load_examples(stored: Sequence[StoredExample]) -> list[Example]:
    """Read and decode examples. Raises UserError naming the shard if an image cannot be read or decoded."""
    return [decode_example(example, image) for example, image in zip(stored, read_images(stored), strict=True)]


def decode_example(stored: StoredExample, image: bytes) -> Example:
    """Decode an example. Raises UserError naming the shard if the image is damaged."""
    try:
        pixels = decode(image, STORED_IMAGE_LIMITS)
    except ImageRejected as error:
        raise UserError(f"{stored.url}, image at {stored.position}: {error}; write the shard again") from error
    height, width = pixels.shape[:2]
    boxes = [
        (x_min * width, y_min * height, x_max * width, y_max * height) for x_min, y_min, x_max, y_max in stored.boxes
    ]
    boxes_of: dict[Span, list[int]] = {}
    for index, span in enumerate(stored.spans):
        boxes_of.setdefault(span, []).append(index)
    phrases = [LabelledPhrase(span=span, boxes=tuple(indices)) for span, indices in boxes_of.items()]
    return Example(image=pixels, caption=stored.caption, phrases=phrases, boxes=boxes)


def mirror(example: Example) -> Example:
    """Mirror an image and its boxes horizontally."""
    width = example.image.shape[1]
    boxes = [(width - x_max, y_min, width - x_min, y_max) for x_min, y_min, x_max, y_max in example.boxes]
    return replace(example, image=np.ascontiguousarray(example.image[:, ::-1]), boxes=boxes)
