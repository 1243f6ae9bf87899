"""The rows a report shows: pictures with their boxes, and examples of every reason to drop a row. The same rows on every run."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from common.images import STORED, decode
from pipeline.images import encode_jpeg, resize
from pipeline.report.config import ReportConfig
from pipeline.report.shards import Manifest, read_batches, read_images
from pipeline.write.store import Store
from schemas.status import KEPT

Row = dict[str, Any]

MAX_SHARDS: Final = 8
"""Shards that pictures are taken from, spread evenly over the run: a tar has to be read up to the wanted image."""
EXAMPLE_COLUMNS: Final = ("key", "url", "caption_original", "stage", "reason", "detail")
PICTURE_COLUMNS: Final = (
    "key",
    "caption",
    "tokens",
    "noun_chunks",
    "ref_exps",
    "boxes",
    "box_scores",
    "clip_similarity",
)
THUMBNAIL_QUALITY: Final = 82


@dataclass(frozen=True)
class Picture:
    """A kept row (PICTURE_COLUMNS) with its image as a small JPEG."""

    row: Row
    jpeg: bytes
    width: int
    height: int


def pick_pictures(store: Store, manifests: Sequence[Manifest], config: ReportConfig) -> list[Picture]:
    """`config.pictures` kept rows whose image is at hand, chosen by a hash of seed and key."""
    with_rows = [manifest for manifest in manifests if manifest["counts"]["kept"]]
    n = min(MAX_SHARDS, len(with_rows))
    shards = [with_rows[i * len(with_rows) // n] for i in range(n)]
    ranked: list[tuple[str, str, int]] = []
    for number, manifest in enumerate(shards):
        for batch in read_batches(store, manifest, ("key", "status")):
            keys = batch["key"].filter(pc.equal(batch["status"], KEPT)).to_pylist()
            ranked += [(hashlib.sha256(f"{config.seed}:{key}".encode()).hexdigest(), key, number) for key in keys]
    chosen = sorted(ranked)[: config.pictures]
    found: dict[str, Picture] = {}
    for number, manifest in enumerate(shards):
        keys = {key for _, key, of in chosen if of == number}
        if keys:
            images = read_images(store, manifest, keys)
            for row in rows_with_keys(store, manifest, keys & images.keys()):
                found[row["key"]] = Picture(row, *thumbnail(images[row["key"]], config.thumbnail_px))
    return [found[key] for _, key, _ in chosen if key in found]


def rows_with_keys(store: Store, manifest: Manifest, keys: set[str]) -> Iterator[Row]:
    """These rows of a shard with PICTURE_COLUMNS."""
    for batch in read_batches(store, manifest, PICTURE_COLUMNS):
        yield from batch.filter(pc.is_in(batch["key"], pa.array(sorted(keys), pa.string()))).to_pylist()


def thumbnail(image: bytes, side_px: int) -> tuple[bytes, int, int]:
    """A JPEG whose longest side is at most `side_px`, with its width and height."""
    pixels = decode(image, STORED)
    scale = min(1.0, side_px / max(pixels.shape[:2]))
    height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
    return encode_jpeg(resize(pixels, height, width), THUMBNAIL_QUALITY), width, height


def pick_examples(store: Store, manifests: Sequence[Manifest], n: int) -> dict[tuple[str, str], list[Row]]:
    """(stage, reason) -> its first `n` rows with EXAMPLE_COLUMNS; only shards that have a missing example are read."""
    examples: dict[tuple[str, str], list[Row]] = {}
    for manifest in manifests:
        here = {(stage, reason) for stage, reasons in manifest["counts"]["dropped"].items() for reason in reasons}
        if all(len(examples.get(why, ())) >= n for why in here):
            continue
        for batch in read_batches(store, manifest, EXAMPLE_COLUMNS):
            for row in batch.filter(pc.is_valid(batch["reason"])).to_pylist():
                rows = examples.setdefault((row["stage"], row["reason"]), [])
                if len(rows) < n:
                    rows.append(row)
    return examples
