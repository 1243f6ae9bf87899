"""Choose the rows that the page shows: sample images and dropped rows. The choice is the same in every run."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from common.images import STORED_IMAGE_LIMITS, decode
from pipeline.images import encode_jpeg, resize
from pipeline.report.attempts import read_latest
from pipeline.report.config import ReportConfig
from pipeline.report.shards import read_batches, read_images
from pipeline.write.attempts import group_attempts
from pipeline.write.store import Store
from schemas.manifest import Manifest
from schemas.status import KEPT

Row = dict[str, Any]
"""Some columns of one row of arrow/."""

MAX_SHARDS: Final = 8
"""Maximum number of shards to take images from, since a tar has to be read up to the chosen image."""
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
EXAMPLE_COLUMNS: Final = (*PICTURE_COLUMNS, "url", "caption_original", "stage", "reason", "detail")
THUMBNAIL_QUALITY: Final = 82


@dataclass(frozen=True)
class Picture:
    """A kept row, with PICTURE_COLUMNS, and its image as a small JPEG."""

    row: Row
    jpeg: bytes
    width: int
    height: int


def pick_pictures(store: Store, manifests: Sequence[Manifest], config: ReportConfig) -> list[Picture]:
    """Choose `config.pictures` kept rows by a hash of the seed and their key; skip those whose image was not stored.

    They are taken from at most MAX_SHARDS shards, spread evenly over the run.
    """
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
        keys = {key for _, key, shard in chosen if shard == number}
        if keys:
            images = read_images(store, manifest, keys)
            for row in rows_with_keys(store, manifest, keys & images.keys()):
                found[row["key"]] = Picture(row, *thumbnail(images[row["key"]], config.thumbnail_px))
    return [found[key] for _, key, _ in chosen if key in found]


def rows_with_keys(store: Store, manifest: Manifest, keys: set[str]) -> Iterator[Row]:
    """Yield the rows of a shard with these keys, with PICTURE_COLUMNS."""
    for batch in read_batches(store, manifest, PICTURE_COLUMNS):
        yield from batch.filter(pc.is_in(batch["key"], pa.array(sorted(keys), pa.string()))).to_pylist()


class Thumbnail(NamedTuple):
    """A small JPEG with its size in pixels."""

    jpeg: bytes
    width: int
    height: int


def thumbnail(image: bytes, side_px: int) -> Thumbnail:
    """Return a JPEG of an encoded image whose longest side is at most `side_px`."""
    pixels = decode(image, STORED_IMAGE_LIMITS)
    scale = min(1.0, side_px / max(pixels.shape[:2]))
    height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
    return Thumbnail(encode_jpeg(resize(pixels, height, width), THUMBNAIL_QUALITY), width, height)


def pick_examples(store: Store, manifests: Sequence[Manifest], n: int) -> dict[tuple[str, str], list[Row]]:
    """Return the first `n` rows dropped for each (stage, reason), with EXAMPLE_COLUMNS.

    Only shards with a reason that still lacks examples are read.
    """
    examples: dict[tuple[str, str], list[Row]] = {}
    for attempts in group_attempts(manifests):
        dropped = [item for manifest in attempts for item in manifest["counts"]["dropped"].items()]
        in_shard = {(stage, reason) for stage, reasons in dropped for reason in reasons}
        if all(len(examples.get(cause, ())) >= n for cause in in_shard):
            continue
        for batch in read_latest(store, attempts, EXAMPLE_COLUMNS):
            for row in batch.filter(pc.is_valid(batch["reason"])).to_pylist():
                rows = examples.setdefault((row["stage"], row["reason"]), [])
                if len(rows) < n:
                    rows.append(row)
    return examples
