"""Evaluation images that appear in the training shards, by URL, by SHA-256 of the file, and by perceptual hash.

The perceptual hash is the difference hash: the image as 9 x 8 gray values, and one bit for each pair of neighbors in a
row, 1 if the left one is brighter. Copies that were resized or compressed again differ in few bits. Two images count as
copies if their hashes differ in at most `MAX_BITS` of 64 bits. Images almost without contrast, whose hashes have fewer
than `MIN_ONES` bits of one kind, are not compared. Shards that hold images on a white square are covered, because an
evaluation image is hashed both as it is and on a white square.

Shapes: n evaluation images, m training images.
"""

import hashlib
import json
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from common.disk import atomic_write
from common.errors import prefixed
from common.images import ImageRejected, decode
from common.shards import list_shards
from trainer.data.crops import LIMITS
from trainer.data.index import Index
from trainer.data.indexing import build_index
from trainer.data.samples import BadSample, SampleFiles
from trainer.data.shards import ByteRangeReader
from trainer.evaluation.pictures import read_content
from trainer.evaluation.tasks.base import ImageSource

logger = logging.getLogger(__name__)

MAX_BITS: Final = 3
"""Largest number of different bits of copies. Four bands of 16 bits find all such pairs: one band is always equal."""
MIN_ONES: Final = 8
BANDS: Final = 4
CHUNK: Final = 2**20
"""Training images that are compared at once."""
MAX_PAIRS: Final = 2**22
"""Pairs of hashes that are compared at once."""
IMAGES: Final = ("child.jpg", "jpg", "jpeg", "png", "webp")
ROW: Final = np.dtype([("url", "<u8"), ("digest", "<u8"), ("picture", "<u8")])
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


def picture_hash(pixels: NDArray[np.uint8]) -> int:
    """The difference hash of RGB pixels [h w 3]; 0 for an image almost without contrast."""
    gray = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY)
    small = cv2.resize(gray, (9, 8), interpolation=cv2.INTER_AREA).astype(int)
    bits = (small[:, :-1] > small[:, 1:]).reshape(-1)
    if not MIN_ONES <= bits.sum() <= 64 - MIN_ONES:
        return 0
    return int.from_bytes(np.packbits(bits).tobytes(), "little")


def on_square(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels [h w 3] in the center of a white square [s s 3]."""
    height, width = pixels.shape[:2]
    side = max(height, width)
    square = np.full((side, side, 3), 255, np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = pixels
    return square


@lru_cache(maxsize=1)  # all tasks and models of an evaluation have the same
def training_fingerprints(shards: str, folder: Path, workers: int = 4, state: str = "") -> NDArray[np.void]:
    """Fingerprints [m] of the images of training shards. They are cached in `folder`, by the shards and their sizes.

    The last result is also kept in memory, until `state`, the result of `state.shards_state`, or another argument differs.
    Samples that cannot be read are skipped and logged. Raises UserError if there are no samples.
    """
    with prefixed("train_shards: "):
        index = build_index(list_shards(shards))
    sizes = repr(list(zip(index.urls, index.facts.n_bytes.tolist(), index.counts, strict=True)))
    path = folder / f"training-{hashlib.sha256(sizes.encode()).hexdigest()[:16]}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max(1, workers)) as pool:
            parts = list(pool.map(partial(shard_fingerprints, index), range(len(index.urls))))
        rows = np.concatenate(parts)
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.save(file, rows, allow_pickle=False)
    found: NDArray[np.void] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def shard_fingerprints(index: Index, number: int) -> NDArray[np.void]:
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
        logger.warning("train_shards: %s: %d images cannot be read and are not compared", shard.url, n_bad)
    return np.array(rows, ROW)


def sample_fingerprint(data: bytes) -> tuple[int, int, int]:
    """The fingerprint of a sample. Raises BadSample and ImageRejected if it has no usable image."""
    files = SampleFiles(data)
    name = next((name for name in IMAGES if name in files), None)
    if name is None:
        raise BadSample("missing_member", "no image")
    image, url = files[name], ""
    if "json" in files:
        try:
            fields = json.loads(files["json"])
            url = str(fields.get("url") or "") if isinstance(fields, dict) else ""
        except ValueError:
            url = ""
    return (short_hash(normal_url(url)) if url else 0), short_hash(image), picture_hash(decode(image, LIMITS))


def normal_url(url: str) -> bytes:
    """A URL without scheme, in lower case: mirrors of one file by http and https are equal."""
    text = url.strip().lower()
    return (text.partition("://")[2] or text).encode(errors="backslashreplace")


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
    url_rows = [(row, short_hash(normal_url(url))) for row, found in enumerate(urls.values()) for url in found]
    rows = np.array([row for row, _ in url_rows], np.int64)
    addresses = np.array([value for _, value in url_rows], np.uint64)
    digests = np.array([digest for digest, _ in hashes], np.uint64)
    by_url, by_hash, by_picture = (np.zeros(len(distinct), bool) for _ in range(3))
    pictures = [np.array([pair[which] for _, pair in hashes], np.uint64) for which in range(2)]
    for start in range(0, len(training), CHUNK):
        chunk = np.array(training[start : start + CHUNK])
        by_url[rows[np.isin(addresses, chunk["url"])]] = True
        by_hash |= np.isin(digests, chunk["digest"]) & (digests != 0)
        for picture in pictures:
            by_picture |= find_near(picture, np.unique(chunk["picture"]))
    return Contamination(
        by_url=int(by_url.sum()),
        by_hash=int(by_hash.sum()),
        by_picture=int(by_picture.sum()),
        any=int((by_url | by_hash | by_picture).sum()),
        n_images=len(distinct),
        n_with_url=len(set(rows.tolist())),
        n_training=len(training),
    )


def image_hashes(image: ImageSource) -> tuple[int, tuple[int, int]]:
    """The hash of the file and the hashes of the picture, as it is and on a square; 0 for what cannot be read."""
    try:
        content = read_content(image)
        pixels = content.pixels()
    except (OSError, ImageRejected):
        return 0, (0, 0)
    digest = short_hash(content.data) if isinstance(content.data, bytes) else 0
    return digest, (picture_hash(pixels), picture_hash(on_square(pixels)))


def find_near(queries: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mask [n] of the hashes `queries` with one of the hashes `others` [m] at most `MAX_BITS` away; 0 has none.

    Hashes that differ in fewer bits than there are bands are equal in one band. Only such pairs are compared.
    """
    found = np.zeros(len(queries), bool)
    others = others[others != 0]
    for number in range(BANDS):
        keys, other_keys = (band(values, number) for values in (queries, others))
        order = keys.argsort(kind="stable")
        keys = keys[order]
        first, last = (np.searchsorted(keys, other_keys, side) for side in ("left", "right"))
        ends = np.cumsum(last - first)
        splits = np.searchsorted(ends, np.arange(MAX_PAIRS, int(ends[-1]) if len(ends) else 0, MAX_PAIRS))
        for part in np.split(np.arange(len(others)), splits):
            counts = (last - first)[part]
            places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - first[part], counts)
            rows = order[places]
            close = np.bitwise_count(queries[rows] ^ np.repeat(others[part], counts)) <= MAX_BITS
            found[rows[close]] = True
    return found & (queries != 0)


def band(values: NDArray[np.uint64], number: int) -> NDArray[np.uint64]:
    """16 bits of each hash."""
    return (values >> np.uint64(16 * number)) & np.uint64(0xFFFF)
