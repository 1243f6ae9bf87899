"""Training shards and stored images for the scripts, drawn when they are needed: nothing large has to be carried.

The pictures are noise with the spectrum of photographs, whose JPEGs take as many bytes and as much time to decode.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeVar

import cv2
import numpy as np
import pyarrow as pa

from hypergrit_common.images import Image
from hypergrit_common.processes import n_cpus
from pipeline.images import encode_jpeg
from pipeline.output.write.tar import TarWriter
from schemas.files import TRAIN_BOX_IMAGE, TRAIN_BOX_PHRASE, TRAIN_CAPTION, TRAIN_IMAGE, TRAIN_N_PARENTS
from schemas.rows import PARSED

VOCABULARY: Final = Path(__file__).parents[2] / "demo" / "weights" / "glip" / "vocab.txt"
SIDE_PX: Final = 224  # of images and boxes in training shards
QUALITY: Final = 95  # as the pipeline writes
BOXES: Final = (1, 1, 1, 2, 2, 3)  # boxes of a sample; GRIT has 1.75 on average
CAPTION_WORDS: Final = 14
ASPECT_SPREAD: Final = 0.35  # deviation of log(width / height), as on the web
SAMPLES: Final = 2048
SHARDS: Final = 16
T = TypeVar("T")
R = TypeVar("R")
FEW: Final = 256  # samples that are written without starting processes


def picture(rng: np.random.Generator, height: int, width: int) -> Image:
    """Draw a colour picture: noise at every scale, twice as strong at twice the scale, and a little grain."""
    total = np.zeros((height, width, 3), np.float32)
    cells = 2
    while cells < max(height, width):
        grid = rng.standard_normal((cells * height // width + 1, cells, 3), np.float32)
        total += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * (90 / cells)
        cells *= 2
    grain = rng.standard_normal((height, width, 1), np.float32)
    return np.clip(128 + total + 3 * grain, 0, 255).astype(np.uint8)


@cache
def words() -> tuple[str, ...]:
    """Return the words that the demo's GLIP and every tokenizer know."""
    lines = VOCABULARY.read_text(encoding="utf-8").split()
    return tuple(word for word in lines if word.isascii() and word.isalpha() and len(word) > 2)


def caption(rng: np.random.Generator, n_words: int = CAPTION_WORDS) -> str:
    """Draw words for a caption."""
    return " ".join(rng.choice(words(), n_words))


def training_shards(folder: Path, n_samples: int = SAMPLES, n_shards: int = SHARDS, side_px: int = SIDE_PX) -> str:
    """Write training shards in HyCoCLIP's layout to a new folder, on all cores, and return its path.

    A folder that has shards already is left as it is.
    """
    if not list(folder.glob("*.tar")):
        folder.mkdir(parents=True, exist_ok=True)
        parts = [part.tolist() for part in np.array_split(np.arange(n_samples), n_shards)]
        on_all_cores(partial(write_shard, folder, side_px), list(enumerate(parts)), few=n_samples <= FEW)
    return str(folder)


def on_all_cores(function: Callable[[T], R], items: Sequence[T], *, few: bool) -> list[R]:
    """Map a function in one process per core; in this process if there are only a few items."""
    if few:
        return list(map(function, items))
    with ProcessPoolExecutor(n_cpus(), get_context("spawn")) as pool:  # a fork would share this process's GPU
        return list(pool.map(function, items, chunksize=max(1, len(items) // (4 * n_cpus()))))


def write_shard(folder: Path, side_px: int, part: tuple[int, Sequence[int]]) -> None:
    """Write a shard, given its number and its samples. Its content depends on the numbers of its samples only."""
    number, samples = part
    path = folder / f"{number:05d}.tar"
    with path.with_suffix(".part").open("wb", buffering=0) as file, TarWriter(file) as tar:
        for sample in samples:
            tar.add_sample(f"{sample:09d}", members(np.random.default_rng(sample), side_px))
    path.with_suffix(".part").rename(path)


def members(rng: np.random.Generator, side_px: int) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a sample."""
    n_boxes = int(rng.choice(BOXES))
    yield TRAIN_IMAGE, encode_jpeg(picture(rng, side_px, side_px), QUALITY)
    yield TRAIN_CAPTION, caption(rng).encode()
    yield TRAIN_N_PARENTS, b"%d" % n_boxes
    for i in range(n_boxes):
        yield TRAIN_BOX_IMAGE.format(i), encode_jpeg(picture(rng, side_px, side_px), QUALITY)
        yield TRAIN_BOX_PHRASE.format(i), caption(rng, 3).encode()


def stored_table(first: int, n_rows: int, short_px: int) -> pa.Table:
    """Return rows of images whose shorter side is `short_px`, and captions with noun chunks, as after the parse stage."""
    numbers = range(first, first + n_rows)
    return pa.Table.from_pylist(on_all_cores(partial(stored_row, short_px), numbers, few=n_rows <= FEW // 4), PARSED)


def stored_row(short_px: int, number: int) -> dict[str, Any]:
    """Return a row of `stored_table`. Every third word of the caption is a phrase."""
    rng = np.random.default_rng(number)
    ratio = float(np.exp(rng.normal(0, ASPECT_SPREAD)))
    height, width = (short_px, round(short_px * ratio)) if ratio >= 1 else (round(short_px / ratio), short_px)
    text = caption(rng)
    ends = np.cumsum([len(word) + 1 for word in text.split()]) - 1
    chunks = [
        {"start": int(end) - len(word), "end": int(end), "root": -1, "removed": None}
        for word, end in zip(text.split()[::3], ends[::3], strict=True)
    ]
    row: dict[str, Any] = {"key": f"{number:012d}", "source": "drawn", "source_row": number, "status": "kept"}
    row |= {"caption": text, "noun_chunks": chunks, "width": width, "height": height}
    row["image"] = encode_jpeg(picture(rng, height, width), 90)
    return {name: row.get(name) for name in PARSED.names}
