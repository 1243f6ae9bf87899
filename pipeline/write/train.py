"""train/: HyCoCLIP's processed samples (paper 003, appendix A), one a kept row, plus a JSON with boxes, parse and provenance.

Its loader wants 224 x 224 JPEGs, padded to a square on white, and at least one parent. Noun chunks come first, then referring
expressions; a text that was seen already is skipped, so each text has its best kept box.
"""

from collections.abc import Iterator
from typing import Any, Final

from common.images import STORED, Image, decode
from pipeline.images import border_square, corners, crop_box, encode_jpeg
from pipeline.write.config import WriteConfig
from pipeline.write.samples import Phrase, Row, grounded_phrases, kept_boxes, shorten, shortest, to_json

SIDE_PX: Final = 224


def distinct_phrases(row: Row, ref_exps: str) -> list[Phrase]:
    """The first phrase of each text, in HyCoCLIP's order."""
    first: dict[str, Phrase] = {}
    for phrase in grounded_phrases(row, ref_exps):
        first.setdefault(row["caption"][phrase.start : phrase.end], phrase)
    return list(first.values())


def train_sample(row: Row, config: WriteConfig, config_hash: str) -> Iterator[tuple[str, bytes]]:
    """Members of the sample of one kept row (schemas.files.TRAIN_MEMBERS)."""
    image = decode(row["image"], STORED)
    phrases = distinct_phrases(row, config.ref_exps)
    if not phrases:
        raise ValueError(f"row {row['key']} is kept without a box")

    def padded(pixels: Image) -> bytes:
        return encode_jpeg(border_square(pixels, SIDE_PX), config.jpeg_quality)

    yield "child.jpg", padded(image)
    yield "child.txt", row["caption"].encode()
    yield "numparents.txt", b"%d" % len(phrases)
    crops: dict[int, bytes] = {}  # a chunk and its expression share a box: cut and encode it once
    for i, phrase in enumerate(phrases):
        if phrase.box not in crops:
            crops[phrase.box] = padded(crop_box(image, corners(row["boxes"][phrase.box])))
        yield f"parent{i:03d}.jpg", crops[phrase.box]
        yield f"parent{i:03d}.txt", row["caption"][phrase.start : phrase.end].encode()
    yield "json", to_json(train_json(row, phrases, config_hash))


def train_json(row: Row, phrases: list[Phrase], config_hash: str) -> dict[str, Any]:
    """The sample's JSON (schemas.files.TRAIN_JSON); boxes are renumbered to the kept ones."""
    kept = kept_boxes(row)
    number = {box: i for i, box in enumerate(kept)}
    boxes = [shorten(row["boxes"][i] | row["box_scores"][i]) for i in kept]
    for box in boxes:
        del box["removed"]
    return {
        "key": row["key"],
        "caption": row["caption"],
        "parents": [{"kind": p.kind, "start": p.start, "end": p.end, "box": number[p.box]} for p in phrases],
        "boxes": boxes,
        "tokens": row["tokens"],
        "noun_chunks": row["noun_chunks"],
        "ref_exps": row["ref_exps"],
        "clip_similarity": shortest(row["clip_similarity"]),
        "width": row["width"],
        "height": row["height"],
        "provenance": {
            "config_hash": config_hash,
            **{name: row[name] for name in ("source", "source_row", "id", "url", "sha256")},
        },
    }
