"""The content of a sample image on the page: the drawn boxes, the caption with its phrases marked, and their scores."""

import base64
import hashlib
import io
import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hypergrit_common.arrow_sizes import read_arrow_file
from hypergrit_common.images import STORED_IMAGE_LIMITS, ImageRejected, decode
from hypergrit_common.text import one_line
from pipeline.config import ReportConfig
from pipeline.images import encode_jpeg, shrink
from pipeline.output.ledger import is_one_of, read_images, read_rows
from pipeline.output.store import Store
from pipeline.stages.score.filters import clip_score
from schemas.files import DROPPED_FILE, THUMBNAIL
from schemas.manifest import Manifest
from schemas.status import INTERNAL_ERROR, KEPT

logger = logging.getLogger("hypergrit")

# Choose the rows that the page shows: sample images and dropped rows. The choice is the same in every run.

Row = dict[str, Any]
"""Some columns of one row of arrow/."""

MAX_SHARDS: Final = 8
"""Maximum number of shards to take images from, since a tar has to be read up to the chosen image."""
PICTURE_COLUMNS: Final = (
    *("key", "url", "sha256", "caption", "tokens", "noun_chunks", "ref_exps"),
    *("boxes", "has_expression", "box_scores", "clip_similarity"),
)
EXAMPLE_COLUMNS: Final = (*PICTURE_COLUMNS, "id", "source", "caption_original", "stage", "reason", "detail")
THUMBNAIL_QUALITY: Final = 82


@dataclass(frozen=True)
class Picture:
    """A kept row, with PICTURE_COLUMNS, and its image as a small JPEG."""

    row: Row
    jpeg: bytes
    width: int
    height: int


def pick_pictures(store: Store, manifests: Sequence[Manifest], config: ReportConfig) -> list[Picture]:
    """Choose `config.pictures` kept rows by a hash of the seed and their key; skip those whose image is not there or damaged.

    They are taken from at most MAX_SHARDS shards, spread evenly over the run.
    """
    with_rows = [manifest for manifest in manifests if manifest["counts"]["kept"]]
    n = min(MAX_SHARDS, len(with_rows))
    shards = [with_rows[i * len(with_rows) // n] for i in range(n)]
    ranked: list[tuple[str, str, int]] = []
    for number, manifest in enumerate(shards):
        rows = read_rows(store, [manifest], ("key", "status"), pc.field("status") == KEPT)
        for key in [row["key"] for row in rows]:
            ranked.append((hashlib.sha256(f"{config.seed}:{key}".encode()).hexdigest(), key, number))
    chosen = sorted(ranked)[: config.pictures]
    found: dict[str, Picture] = {}
    for number, manifest in enumerate(shards):
        keys = {key for _, key, shard in chosen if shard == number}
        if keys:
            images = read_images(store, manifest, keys)
            for row in unlisted(store, read_rows(store, [manifest], PICTURE_COLUMNS, is_one_of("key", images))):
                try:
                    found[row["key"]] = Picture(row, *thumbnail(images[row["key"]], config.thumbnail_px))
                except ImageRejected as error:
                    logger.warning("the picture of row %s in shard %d is damaged, and not shown (%s); run hypergrit verify",
                                   row["key"], manifest["shard"], one_line(error))  # fmt: skip
    return [found[key] for _, key, _ in chosen if key in found]


def unlisted(store: Store, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows without those that a takedown that did not end has left."""
    return (row for row in rows if store.takedowns.match(row["url"], row["sha256"]) is None)


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
    return Thumbnail(encode_jpeg(shrink(pixels, height, width), THUMBNAIL_QUALITY), width, height)


def pick_examples(store: Store, manifests: Sequence[Manifest], n: int) -> dict[tuple[str, str], list[Row]]:
    """Return the first `n` rows dropped for each (stage, reason), with EXAMPLE_COLUMNS.

    Only shards with a reason that still lacks examples are read.
    """
    examples: dict[tuple[str, str], list[Row]] = {}
    for manifest in manifests:
        dropped = manifest["counts"]["dropped"].items()
        in_shard = {(stage, reason) for stage, reasons in dropped for reason in reasons}
        if all(len(examples.get(cause, ())) >= n for cause in in_shard):
            continue
        for row in unlisted(store, read_rows(store, [manifest], EXAMPLE_COLUMNS, pc.field("reason").is_valid())):
            rows = examples.setdefault((row["stage"], row["reason"]), [])
            if len(rows) < n:
                rows.append(row)
    return examples


N_COLOURS: Final = 8
"""Number of colours in style.css, `.c0` to `.c7`. Phrases also have numbers, so colours may repeat."""
MAX_BOXES: Final = 64
"""Kept boxes shown on a card, the best ones; the card states the number of the others."""
MAX_REMOVED: Final = 8
"""Boxes shown on the card of a dropped row, all of which were removed."""
TAG_PX: Final = 11.0
"""Radius of the disc with the number of a box, including its border, in pixels of the thumbnail."""


@dataclass(frozen=True)
class CaptionPart:
    """A part of the caption. `number` and `colour` are set for a grounded phrase, `removed` for a removed one."""

    text: str
    number: int | None = None
    colour: int | None = None
    removed: str | None = None


@dataclass(frozen=True)
class DrawnBox:
    """A kept box in pixels of the thumbnail; (tag_x, tag_y) is the centre of the disc with its number."""

    number: int
    colour: int
    x: float
    y: float
    width: float
    height: float
    tag_x: float
    tag_y: float


@dataclass(frozen=True)
class CardPhrase:
    """A phrase with at least one drawn box. `scores` has (grounding score, CLIPScore of crop and phrase) for each."""

    number: int
    colour: int
    text: str
    expression: str | None
    scores: list[tuple[float, float | None]]


@dataclass(frozen=True)
class Card:
    """One image on the page. `removed` lists (phrase, reason, number of boxes) for removed boxes."""

    key: str
    source: str
    width: int
    height: int
    alt: str
    parts: list[CaptionPart]
    boxes: list[DrawnBox]
    phrases: list[CardPhrase]
    removed: list[tuple[str, str, int]]
    similarity: float | None  # CLIPScore of image and caption
    n_hidden: int  # boxes above MAX_BOXES


def make_card(picture: Picture, is_dropped: bool = False) -> Card:
    """Prepare an image for the template. Phrases are numbered from 1 in the order of the caption.

    The kept boxes of a row are drawn, or, if it was dropped, the best boxes, all of which were removed.
    """
    row, caption = picture.row, picture.row["caption"] or ""
    flags = row["has_expression"] or repeat(True)
    boxes = [box | {"has_expression": flag} for box, flag in zip(row["boxes"] or (), flags, strict=False)]
    pairs = list(zip(boxes, row["box_scores"] or (), strict=False))
    found = [(box, score) for box, score in pairs if is_dropped or score["removed"] is None]
    kept = found[: MAX_REMOVED if is_dropped else MAX_BOXES]
    removed = Counter((box["phrase"], score["removed"]) for box, score in pairs if score["removed"] is not None)
    chunks = row["noun_chunks"] or ()
    described = {box["phrase"] for box, _ in kept if box["has_expression"]}
    order = sorted({box["phrase"] for box, _ in kept}, key=lambda chunk: (chunks[chunk]["start"], chunk))
    numbers = {chunk: i + 1 for i, chunk in enumerate(order)}
    phrases = [
        CardPhrase(
            number=numbers[chunk],
            colour=colour_of(numbers[chunk]),
            text=text_of(row, chunks[chunk]),
            expression=expression_of(row, chunk) if chunk in described else None,
            scores=[(box["score"], scaled(score["clip_cosine"])) for box, score in kept if box["phrase"] == chunk],
        )
        for chunk in order
    ]
    return Card(
        key=row["key"],
        source="data:image/jpeg;base64," + base64.b64encode(picture.jpeg).decode(),
        width=picture.width,
        height=picture.height,
        alt=f"{caption} Boxes: {', '.join(f'{phrase.number} {phrase.text}' for phrase in phrases)}.",
        parts=list(split_caption(row, numbers)),
        boxes=draw_boxes([(box, numbers[box["phrase"]]) for box, _ in kept], picture),
        phrases=phrases,
        removed=[(text_of(row, chunks[chunk]), reason, n) for (chunk, reason), n in sorted(removed.items())],
        similarity=scaled(row["clip_similarity"]),
        n_hidden=len(found) - len(kept),
    )


def scaled(cosine: float | None) -> float | None:
    """Return the CLIPScore of a cosine, so that the page shows all scores on the scales of the thresholds."""
    return None if cosine is None else clip_score(cosine)


def colour_of(number: int) -> int:
    """Return the colour (0 to N_COLOURS - 1) of the phrase with this number."""
    return (number - 1) % N_COLOURS


def draw_boxes(boxes: list[tuple[dict[str, Any], int]], picture: Picture) -> list[DrawnBox]:
    """Convert boxes, each with its phrase's number, to pixels of the thumbnail.

    The disc with the number is at the top left corner of its box, or to the right of a disc that is already there.
    """
    drawn: list[DrawnBox] = []
    for box, number in sorted(boxes, key=lambda item: item[1]):
        x, y = box["x_min"] * picture.width, box["y_min"] * picture.height
        width, height = box["x_max"] * picture.width - x, box["y_max"] * picture.height - y
        tag_x, tag_y = (min(max(at, TAG_PX), side - TAG_PX) for at, side in ((x, picture.width), (y, picture.height)))
        while any(math.hypot(tag_x - other.tag_x, tag_y - other.tag_y) < 1.6 * TAG_PX for other in drawn):
            tag_x += 0.5 * TAG_PX
        rounded = (round(value, 1) for value in (x, y, width, height, tag_x, tag_y))
        drawn.append(DrawnBox(number, colour_of(number), *rounded))
    return drawn


def split_caption(row: Row, numbers: dict[int, int]) -> Iterator[CaptionPart]:
    """Split the caption into phrases and the text between them; `numbers` has the number of each grounded noun chunk.

    A noun chunk that overlaps an earlier one, which only occurs in GRIT input, is not marked.
    """
    caption, position = row["caption"] or "", 0
    chunks = sorted(
        enumerate(row["noun_chunks"] or ()),
        key=lambda item: (item[1]["start"], item[0] not in numbers, -item[1]["end"]),
    )
    for i, chunk in chunks:
        number = numbers.get(i)
        if chunk["start"] < position or (number is None and chunk["removed"] is None):
            continue
        if chunk["start"] > position:
            yield CaptionPart(caption[position : chunk["start"]])
        colour = None if number is None else colour_of(number)
        yield CaptionPart(text_of(row, chunk), number, colour, chunk["removed"])
        position = chunk["end"]
    if position < len(caption):
        yield CaptionPart(caption[position:])


def expression_of(row: Row, chunk: int) -> str | None:
    """Return the longest referring expression of a noun chunk, or None if it is not longer than the chunk."""
    texts = [text_of(row, expression) for expression in row["ref_exps"] or () if expression["chunk"] == chunk]
    longest = max(texts, key=len, default="")
    return longest if len(longest) > len(text_of(row, row["noun_chunks"][chunk])) else None


def text_of(row: Row, span: dict[str, Any]) -> str:
    """Return the text of a noun chunk or referring expression."""
    return str(row["caption"][span["start"] : span["end"]])


# Thumbnails of dropped rows, for the report: their images are not stored otherwise.

MAX_DROPPED_SHARDS: Final = 32
WITHOUT_IMAGES: Final = {"read", "download", "write"}
"""Stages that drop no row of which there is an image."""


@dataclass(frozen=True)
class DroppedPicture:
    """The thumbnail of a row that a stage dropped."""

    key: str
    stage: str
    reason: str
    thumbnail: Thumbnail


def pick_dropped(
    before: pa.Table, after: pa.Table, known: Sequence[DroppedPicture], config: ReportConfig
) -> list[DroppedPicture]:
    """Return thumbnails of the first rows that a stage dropped for each reason, `config.examples` with those `known`.

    `before` and `after` are the rows of a shard, in the same order, before and after the stage.
    """
    is_new = pc.and_(pc.equal(before["status"], KEPT), pc.not_equal(after["status"], KEPT))
    counts = Counter((picture.stage, picture.reason) for picture in known)
    found: list[DroppedPicture] = []
    for i in pc.indices_nonzero(is_new).to_pylist():
        key, stage, reason = (after[name][i].as_py() for name in ("key", "stage", "reason"))
        image = before["image"][i].as_py()
        if image is None or reason == INTERNAL_ERROR or counts[stage, reason] >= config.examples:
            continue  # an image at which a stage has failed may also make this function fail
        with suppress(ImageRejected):
            picture = DroppedPicture(key, stage, reason, thumbnail(image, config.thumbnail_px))
            found.append(picture)
            counts[stage, reason] += 1
    return found


def dropped_file(pictures: Sequence[DroppedPicture]) -> bytes:
    """Return the content of the file with the thumbnails of a shard, empty without any."""
    if not pictures:
        return b""
    rows = [{"key": picture.key, **picture.thumbnail._asdict()} for picture in pictures]
    data = io.BytesIO()
    with pa.ipc.new_file(data, THUMBNAIL) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=THUMBNAIL))
    return data.getvalue()


def find_dropped(
    store: Store, manifests: Sequence[Manifest], examples: Mapping[tuple[str, str], Sequence[Row]]
) -> dict[str, Thumbnail]:
    """Return the thumbnails of the rows in `examples`, (stage, reason) -> rows, by key; those that are stored.

    At most MAX_SHARDS shards are read.
    """
    causes = {row["key"]: cause for cause, rows in examples.items() for row in rows}
    found: dict[str, Thumbnail] = {}
    n_read = 0
    for manifest in manifests:
        in_shard = {(stage, reason) for stage, reasons in manifest["counts"]["dropped"].items() for reason in reasons}
        wanted = {key for key, cause in causes.items() if cause in in_shard and cause[0] not in WITHOUT_IMAGES}
        if wanted - found.keys() and n_read < MAX_DROPPED_SHARDS:
            n_read += 1
            found |= read_dropped(store, manifest["shard"], wanted)
    return found


def read_dropped(store: Store, index: int, keys: Collection[str] | None = None) -> dict[str, Thumbnail]:
    """Return the thumbnails of a shard by key, those of `keys` or all; none if its file is missing or damaged."""
    data = store.read_spare(DROPPED_FILE.path(index))
    try:
        rows = read_arrow_file(data, THUMBNAIL).to_pylist() if data else []
    except (pa.ArrowException, ValueError, OSError):
        return {}
    found = {row["key"]: Thumbnail(row["jpeg"], row["width"], row["height"]) for row in rows}
    return found if keys is None else {key: found[key] for key in found.keys() & {*keys}}
