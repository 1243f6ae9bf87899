"""Read training examples from shards of the pipeline: grit/*.tar or arrow/*.arrow, on disk or at any fsspec URL."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from tokenizers import BertWordPieceTokenizer
from torch import Tensor

from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.images import STORED_IMAGE_LIMITS, Image, ImageRejected, decode
from hypergrit_common.remote import map_concurrently, one_line, open_file, open_store, store_errors
from hypergrit_common.shards import list_shards, read_errors_explained
from hypergrit_common.tar import Member, TarError, iter_members, reader_of
from pipeline.stages.ground.glip.config import GlipConfig
from pipeline.stages.ground.glip.head import to_inclusive
from pipeline.stages.ground.glip.predict import (
    Size,
    batch_images,
    network_size,
    normalise,
    padded_size,
    resize_bilinear,
)
from pipeline.stages.ground.glip.text import Prompt, Prompter, pad_prompts, positive_map
from pipeline.stages.ground.glip.training.config import GlipTrainConfig
from pipeline.stages.ground.glip.training.loss import Target
from pipeline.stages.ground.grounder import Span, prefetch
from schemas.status import KEPT

SUFFIXES: Final = (".tar", ".arrow")
MAX_JSON_BYTES: Final = 64_000_000
COLUMNS: Final = ["status", "height", "width", "caption", "noun_chunks", "boxes", "box_scores"]

Corners = tuple[float, float, float, float]
"""x_min, y_min, x_max, y_max as fractions of the image."""


class StoredExample(NamedTuple):
    """An example of a shard, and the position of its image in the file."""

    url: str  # of the shard; a path if it is local
    position: int  # in an .arrow file, the row; in a .tar file, the offset of the image's first byte
    n_bytes: int  # in a .tar file, the length of the image
    height: int
    width: int
    caption: str
    boxes: tuple[Corners, ...]
    spans: tuple[Span, ...]  # span of the phrase of each box


def list_training_shards(shards: str) -> list[str]:
    """List the .tar and .arrow files of a folder, glob, file or URL, or of several separated by commas.

    The files are in numeric order. For an output folder of the pipeline, they are the files of grit/, or those of
    arrow/ if there is no grit/. Uncommitted files, which have no manifest, are skipped with a warning. Raises UserError
    if no file is found.
    """
    with prefixed("shards: "):
        found = list_shards(shards, formats=("grit", "arrow"), suffixes=SUFFIXES)
        usable = [url for url in found if url.endswith(SUFFIXES)]  # a glob can also match the .parquet files of grit/
        if not usable:
            raise UserError(f"{shards} holds no *.tar or *.arrow; give an output folder of the pipeline")
    return usable


def read_captions(urls: Sequence[str]) -> Iterator[str]:
    """Yield the captions of all examples."""
    return (example.caption for url in urls for example in read_examples(url))


def read_examples(url: str) -> Iterator[StoredExample]:
    """Yield the examples of a shard without their images. Raises UserError if it cannot be read or is not a shard."""
    return _arrow_examples(url) if url.endswith(".arrow") else _tar_examples(url)


def read_images(examples: Sequence[StoredExample]) -> list[bytes]:
    """Return the encoded images of examples; those of remote shards are requested concurrently.

    Raises UserError or OSError if an image cannot be read.
    """
    if any(_is_remote(example.url) for example in examples):
        return list(map_concurrently(_read_image, examples))
    return [_read_image(example) for example in examples]


def _is_remote(url: str) -> bool:
    return "://" in url  # list_shards returns local files as paths


def _read_image(example: StoredExample) -> bytes:
    if example.url.endswith(".arrow"):
        data: bytes = _arrow_table(example.url)["image"][example.position].as_py()
        return data
    if _is_remote(example.url):
        fs, path = open_store(example.url)
        with read_errors_explained(example.url):
            return bytes(fs.cat_file(path, start=example.position, end=example.position + example.n_bytes))
    with open(example.url, "rb") as file:
        file.seek(example.position)
        return file.read(example.n_bytes)


@cache
def _arrow_table(url: str) -> pa.Table:
    """Return the table of an .arrow file. It is cached: reading it again would decompress all columns again."""
    with _damage_explained(url, "arrow/"):
        if not _is_remote(url):
            return pa.ipc.open_file(pa.memory_map(url)).read_all()
        with open_file(url) as file:
            return pa.ipc.open_file(pa.PythonFile(file)).read_all()


def _arrow_examples(url: str) -> Iterator[StoredExample]:
    table = _arrow_table(url)
    missing = {*COLUMNS, "image"} - set(table.schema.names)
    if missing:
        raise UserError(f"{url} is not a shard of the pipeline's arrow/: it has no column {', '.join(sorted(missing))}")
    images = table["image"]
    for position, row in enumerate(table.select(COLUMNS).to_pylist()):
        if row["status"] == KEPT:
            if not images[position].is_valid:
                raise UserError(
                    f"{url} holds no images; write it with write.image_bytes=true, or give the grit/ of the same output"
                )
            scored = zip(row["boxes"], row["box_scores"], strict=True)
            boxes = [box for box, score in scored if score["removed"] is None]
            chunks = [row["noun_chunks"][box["phrase"]] for box in boxes]
            yield StoredExample(
                url=url,
                position=position,
                n_bytes=0,
                height=row["height"],
                width=row["width"],
                caption=row["caption"],
                boxes=tuple((box["x_min"], box["y_min"], box["x_max"], box["y_max"]) for box in boxes),
                spans=tuple((chunk["start"], chunk["end"]) for chunk in chunks),
            )


def _tar_examples(url: str) -> Iterator[StoredExample]:
    """Yield the examples of a tar of grit/: a .jpg, a .txt and a .json member for each, in this order."""
    with _damage_explained(url, "grit/"), _open(url) as file:
        read_at = reader_of(file)
        image: Member | None = None
        for member in iter_members(read_at, 0, file.seek(0, os.SEEK_END), needs_mark=True):
            if member.name.endswith(".jpg"):
                image = member
            elif member.name.endswith(".json") and image and image.name[:-4] == member.name[:-5]:
                if member.size > MAX_JSON_BYTES:
                    raise ValueError(f"{member.name} has {member.size} bytes")
                row = json.loads(read_at(member.data_offset, member.size))
                yield StoredExample(
                    url=url,
                    position=image.data_offset,
                    n_bytes=image.size,
                    height=row["height"],
                    width=row["width"],
                    caption=row["caption"],
                    boxes=tuple(
                        (x_min, y_min, x_max, y_max) for _, _, x_min, y_min, x_max, y_max, *_ in row["noun_chunks"]
                    ),
                    spans=tuple((int(start), int(end)) for start, end, *_ in row["noun_chunks"]),
                )


def _open(url: str) -> IO[bytes]:
    return open_file(url) if _is_remote(url) else open(url, "rb")


@contextmanager
def _damage_explained(url: str, folder: str) -> Iterator[None]:
    """Raise UserError if the shard cannot be read, or is not a file of `folder` in the pipeline's output."""
    try:
        yield
    except store_errors() as error:
        raise UserError(
            f"{url} cannot be read: {one_line(error)}; check the path and the permissions, or write the shard again"
        ) from error
    except (TarError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise UserError(
            f"{url} is not a shard of the pipeline's {folder}, or is damaged: {type(error).__name__}: {one_line(error)}"
        ) from error


# Training examples (an image, its caption, and the boxes of its phrases), and batches of them.


@dataclass(frozen=True, kw_only=True)
class LabelledPhrase:
    """A phrase of a caption and its boxes; a phrase that the image does not show has no boxes."""

    span: Span
    """Characters [start, end) of the caption."""
    boxes: tuple[int, ...]  # indices into the boxes of the example


@dataclass(frozen=True, kw_only=True)
class Example:
    """An image, its caption, and the true boxes of its phrases.

    Attributes:
        image: uint8 RGB [h w 3].
        caption: the text that the spans of `phrases` count in.
        phrases: phrases with the indices of their boxes.
        boxes: xyxy in pixels, right and bottom exclusive.
    """

    image: Image
    caption: str
    phrases: Sequence[LabelledPhrase]
    boxes: Sequence[tuple[float, float, float, float]]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The input of one training step."""

    images: Tensor  # [b, 3, h, w], normalised and padded
    ids: Tensor  # [b, t]
    mask: Tensor  # [b, t], 0 for padding
    targets: list[Target]


def collate(examples: Sequence[Example], prompter: Prompter, config: GlipConfig) -> Batch:
    """Build a batch, padded to its largest image and longest prompt.

    If a caption is split into several prompts, only the first one is used. Raises ValueError for a caption without a
    phrase that can be tokenized.
    """
    images, prompts, scaled = [], [], []
    for example in examples:
        size = network_size(example.image.shape[0], example.image.shape[1], config.detect)
        images.append(resize_bilinear(example.image, size))
        plan = prompter.plan(example.caption, [phrase.span for phrase in example.phrases], "caption")
        if not plan.prompts:
            raise ValueError(f"no phrase of the caption {example.caption!r} can be tokenized: {plan.dropped}")
        prompts.append(plan.prompts[0])
        scale = torch.tensor([size[1] / example.image.shape[1], size[0] / example.image.shape[0]] * 2)
        scaled.append(torch.tensor(example.boxes, dtype=torch.float32).view(-1, 4) * scale)
    ids, mask = pad_prompts([prompt.ids for prompt in prompts])
    return Batch(
        images=normalise(batch_images(images), [image.shape[:2] for image in images]),
        ids=ids,
        mask=mask,
        targets=[
            make_target(example, prompt, boxes, ids.shape[1])
            for example, prompt, boxes in zip(examples, prompts, scaled, strict=True)
        ],
    )


def make_target(example: Example, prompt: Prompt, boxes: Tensor, length: int) -> Target:
    """Return the boxes of the prompt's phrases; `boxes` are those of the example in pixels of the network's input."""
    tokens = torch.zeros(len(boxes), length, dtype=torch.bool)
    maps = positive_map([item.tokens for item in prompt.phrases], length)
    for item, row in zip(prompt.phrases, maps, strict=True):
        for box in example.phrases[item.phrase].boxes:
            tokens[box] |= row
    is_named = tokens.any(dim=1)
    return Target(boxes=to_inclusive(boxes)[is_named], tokens=tokens[is_named])


def batches(examples: Iterable[Example], prompter: Prompter, config: GlipConfig, size: int) -> Iterator[Batch]:
    """Build batches of consecutive examples; an incomplete last batch is dropped.

    Args:
        examples: examples in the order of the training.
        prompter: tokenizer.
        config: architecture and image size.
        size: examples of a batch.

    Yields:
        Batches, padded to their largest image and longest prompt.

    Raises:
        ValueError: a caption has no phrase that can be tokenized.
    """
    waiting: list[Example] = []
    for example in examples:
        waiting.append(example)
        if len(waiting) == size:
            yield collate(waiting, prompter, config)
            waiting = []


# List the examples of shards that training can use.


class IndexedExample(NamedTuple):
    """An example of a shard, and the padded size of its image in the network."""

    stored: StoredExample
    padded_size: Size


def index_examples(
    urls: Sequence[str], prompter: Prompter, config: GlipConfig
) -> tuple[list[IndexedExample], Counter[str]]:
    """Return the examples with boxes and a phrase that can be tokenized; count the skipped ones by reason."""
    indexed: list[IndexedExample] = []
    skipped: Counter[str] = Counter()
    for url in urls:
        for stored in read_examples(url):
            plan = prompter.plan(stored.caption, sorted(set(stored.spans)), "caption")
            if not stored.boxes:
                skipped["no box"] += 1
            elif not plan.prompts:
                skipped[plan.dropped[0].reason] += 1
            else:
                size = network_size(stored.height, stored.width, config.detect)
                indexed.append(IndexedExample(stored, padded_size(size)))
    return indexed, skipped


# Batches for training: examples of shards in random order, decoded, augmented and collated.

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


# Build a vocabulary of word pieces from texts, for a GLIP that is trained from scratch.


def write_vocabulary(path: Path, texts: Iterable[str], size: int) -> None:
    """Write word pieces, one per line, atomically.

    They include all printable ASCII characters, so that no word of ASCII characters is unknown.

    Args:
        path: file to write.
        texts: captions from which the word pieces are learned.
        size: largest number of word pieces.
    """
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    characters += [f"##{character}" for character in characters if character.isalnum()]
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(texts, size - len(characters), min_frequency=1, show_progress=False)
    ids = tokenizer.get_vocab()
    pieces = dict.fromkeys([*sorted(ids, key=lambda piece: ids[piece]), *characters])
    with atomic_write(path) as draft:
        draft.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
