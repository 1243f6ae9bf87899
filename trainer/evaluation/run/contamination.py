"""Evaluation images that appear in the training shards, by URL, by SHA-256 of the file, and by perceptual hash.

URLs and pictures are compared as by the pipeline's decontaminate (hypergrit_common.near_duplicates). Shards that hold
images on a white square are covered, because an evaluation image is hashed both as it is and on a white square.

Shapes: n evaluation images, m training images.
"""

import hashlib
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import prefixed
from hypergrit_common.images import ImageRejected, decode
from hypergrit_common.locations import Locations
from hypergrit_common.near_duplicates import find_near, normal_url, perceptual_hash
from hypergrit_common.samples import LIMITS, BadSample, SampleFiles
from hypergrit_common.shards import list_shards
from hypergrit_common.text import counted
from trainer.data.index import SampleIndex
from trainer.data.indexing import build_index
from trainer.data.shards import ByteRangeReader
from trainer.evaluation.embedder import open_rows
from trainer.evaluation.sets.pictures import read_content
from trainer.evaluation.task import ImageSource

logger = logging.getLogger(__name__)

RADIUS: Final = 6
"""Largest number of different bits of copies: the default of decontaminate."""
CHUNK: Final = 2**20
"""Training images that are compared at once."""
IMAGES: Final = ("child.jpg", "jpg", "jpeg", "png", "webp")
ROW: Final = np.dtype([("url", "<u8"), ("digest", "<u8"), ("phash", "<u8")])
"""Fingerprint of a training image: the first 64 bits of the hashes of its URL and of its file, and its picture."""


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """Numbers of evaluation images that appear in the training shards. An image may be counted in several of them."""

    by_url: int
    by_hash: int
    by_picture: int
    any: int
    n_images: int
    n_with_url: int
    n_training: int


def short_hash(data: bytes) -> int:
    """The first 64 bits of the SHA-256."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def on_square(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels [h w 3] in the center of a white square [s s 3]."""
    height, width = pixels.shape[:2]
    side = max(height, width)
    square = np.full((side, side, 3), 255, np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = pixels
    return square


@lru_cache(maxsize=1)  # all tasks and models of an evaluation have the same
def training_fingerprints(shards: Locations, folder: Path, workers: int = 4, state: str = "") -> NDArray[np.void]:
    """Fingerprints [m] of the images of training shards. They are cached in `folder`, by the shards and their sizes.

    The last result is also kept in memory, until `state`, the result of `state.shards_state`, or another argument differs.
    Samples that cannot be read are skipped and logged. Raises UserError if there are no samples.
    """
    with prefixed("train_shards: "):
        index = build_index(list_shards(shards))
    sizes = repr([ROW.names, *zip(index.urls, index.facts.n_bytes.tolist(), index.counts, strict=True)])
    path = folder / f"training-{hashlib.sha256(sizes.encode()).hexdigest()[:16]}.npy"
    found = open_rows(path, ROW, index.n_samples) if path.exists() else None
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max(1, workers)) as pool:
            parts = list(pool.map(partial(shard_fingerprints, index), range(len(index.urls))))
        rows = np.concatenate(parts)
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.save(file, rows, allow_pickle=False)
        found = np.lib.format.open_memmap(path, mode="r")
    return found


def shard_fingerprints(index: SampleIndex, number: int) -> NDArray[np.void]:
    """Fingerprints of the images of one shard."""
    shard, reader, rows, n_bad = index.shard(number), ByteRangeReader(), [], 0
    first = int(index.ends[number]) - len(shard)
    for sample in range(first, first + len(shard)):
        try:
            rows.append(sample_fingerprint(reader.read([index.byte_range(sample)])[0]))
        except (BadSample, ImageRejected):
            n_bad += 1
    reader.close()
    if n_bad:
        logger.warning("train_shards: %s: %s unreadable and not compared", shard.url, counted(n_bad, "image"))
    return np.array(rows, ROW)


def sample_fingerprint(data: bytes) -> tuple[int, int, int]:
    """The fingerprint of a sample. Raises BadSample and ImageRejected if it has no usable image."""
    files = SampleFiles(data)
    name = next((name for name in IMAGES if name in files), None)
    if name is None:
        raise BadSample("missing_member", "no image")
    image, url = files[name], ""
    if "json" in files:
        with suppress(BadSample):
            url = str(files.json("json").get("url") or "")
    return url_hash(url), short_hash(image), perceptual_hash(decode(image, LIMITS))


def url_hash(url: str) -> int:
    """The hash of a URL, equal for all spellings that the downloader fetches as one; 0 for other texts."""
    normal = normal_url(url)
    return short_hash(normal.encode(errors="backslashreplace")) if normal else 0


def count_copies(images: Iterable[ImageSource], training: NDArray[np.void], workers: int = 4) -> Contamination:
    """Count the evaluation images with a copy among the training images. Boxes of a file count as one image."""
    by_file: dict[tuple[Path, int | None], ImageSource] = {}
    urls: dict[tuple[Path, int | None], set[str]] = {}
    for image in images:
        by_file.setdefault((image.path, image.index), image)
        urls.setdefault((image.path, image.index), set()).update(image.urls)
    distinct = list(by_file.values())
    with ThreadPoolExecutor(max(1, workers)) as pool:
        hashes = list(pool.map(image_hashes, distinct))
    url_rows = [(row, value) for row, found in enumerate(urls.values()) for url in found if (value := url_hash(url))]
    rows = np.array([row for row, _ in url_rows], np.int64)
    addresses = np.array([value for _, value in url_rows], np.uint64)
    digests = np.array([digest for digest, _ in hashes], np.uint64)
    by_url, by_hash, by_picture = (np.zeros(len(distinct), bool) for _ in range(3))
    owners = np.array([row for row, (_, found) in enumerate(hashes) for _ in found], np.int64)
    pictures = np.array([value for _, found in hashes for value in found], np.uint64)
    for start in range(0, len(training), CHUNK):
        chunk = np.array(training[start : start + CHUNK])
        by_url[rows[np.isin(addresses, chunk["url"])]] = True
        by_hash |= np.isin(digests, chunk["digest"]) & (digests != 0)
        by_picture[owners[find_near(pictures, np.unique(chunk["phash"]), RADIUS)]] = True
    return Contamination(
        by_url=int(by_url.sum()),
        by_hash=int(by_hash.sum()),
        by_picture=int(by_picture.sum()),
        any=int((by_url | by_hash | by_picture).sum()),
        n_images=len(distinct),
        n_with_url=len(set(rows.tolist())),
        n_training=len(training),
    )


def image_hashes(image: ImageSource) -> tuple[int, list[int]]:
    """The hash of the file, and those of the picture as it is and on a square; 0 and none if it cannot be read."""
    try:
        content = read_content(image)
        pixels = content.pixels()
    except (OSError, ImageRejected):
        return 0, []
    digest = short_hash(content.data) if isinstance(content.data, bytes) else 0
    return digest, [perceptual_hash(pixels), perceptual_hash(on_square(pixels))]
