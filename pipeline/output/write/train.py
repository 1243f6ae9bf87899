"""Write train/: one sample per kept row, in the layout of HyCoCLIP (arXiv 2410.06912, appendix A) with an added JSON.

HyCoCLIP's loader expects 224 x 224 JPEGs, padded to a square with white, and at least one parent: a box and its phrase.
The parents are the noun chunks, then the referring expressions. Each distinct text is written once, with its best box.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from hypergrit_common.images import STORED_IMAGE_LIMITS, Image, decode
from pipeline.config import WriteConfig
from pipeline.images import border_square, corners, crop_box, encode_jpeg
from pipeline.output.write.samples import (
    GroundedPhrase,
    Row,
    grounded_phrases,
    kept_boxes,
    shorten_floats,
    shortest_float,
    to_json,
)
from pipeline.stages.captions import clean
from schemas.files import (
    TRAIN_ANNOTATIONS,
    TRAIN_BOX_IMAGE,
    TRAIN_BOX_PHRASE,
    TRAIN_CAPTION,
    TRAIN_IMAGE,
    TRAIN_N_PARENTS,
    HardNegatives,
    TrainAnnotations,
)

SIDE_PX: Final = 224


def distinct_phrases(row: Row) -> list[GroundedPhrase]:
    """Return the phrases of a row in HyCoCLIP's order, without those whose text occurred before."""
    first: dict[str, GroundedPhrase] = {}
    for phrase in grounded_phrases(row):
        first.setdefault(row["caption"][phrase.start : phrase.end], phrase)
    return list(first.values())


def train_sample(row: Row, config: WriteConfig, config_hash: str) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a kept row's sample, as (name, content) (schemas.files.TRAIN_MEMBERS).

    A pair, a row without a kept box, has no parents: HyCoCLIP's own loader cannot read it.
    """
    image = decode(row["image"], STORED_IMAGE_LIMITS)
    phrases = distinct_phrases(row)

    def padded(pixels: Image) -> bytes:
        return encode_jpeg(border_square(pixels, SIDE_PX), config.jpeg_quality)

    yield TRAIN_IMAGE, padded(image)
    yield TRAIN_CAPTION, row["caption"].encode()
    yield TRAIN_N_PARENTS, b"%d" % len(phrases)
    crops: dict[int, bytes] = {}  # by box, since a noun chunk and its referring expression have the same box
    for i, phrase in enumerate(phrases):
        if phrase.box not in crops:
            crops[phrase.box] = padded(crop_box(image, corners(row["boxes"][phrase.box])))
        yield TRAIN_BOX_IMAGE.format(i), crops[phrase.box]
        yield TRAIN_BOX_PHRASE.format(i), row["caption"][phrase.start : phrase.end].encode()
    fields = annotations(row, phrases, config_hash)
    if extra := chosen_columns(row["extra"], config.train_columns):
        fields["extra"] = extra
    yield TRAIN_ANNOTATIONS, to_json(fields)


def annotations(row: Row, phrases: Sequence[GroundedPhrase], config_hash: str) -> TrainAnnotations:
    """Return the content of the sample's JSON. Box indices refer to the kept boxes."""
    kept = kept_boxes(row)
    number = {box: i for i, box in enumerate(kept)}
    boxes = [shorten_floats(row["boxes"][i] | row["box_scores"][i]) for i in kept]
    for i, box in zip(kept, boxes, strict=True):
        del box["removed"]
        if row["has_expression"] is not None:
            box["has_expression"] = row["has_expression"][i]
    fields: TrainAnnotations = {
        "parents": [{"kind": p.kind, "start": p.start, "end": p.end, "box": number[p.box]} for p in phrases],
        "boxes": boxes,
        "noun_chunks": row["noun_chunks"],
        "ref_exps": row["ref_exps"],
        "key": row["key"],
        "caption": row["caption"],
        "tokens": row["tokens"],
        "clip_similarity": shortest_float(row["clip_similarity"]),
        "width": row["width"],
        "height": row["height"],
        "provenance": {
            "config_hash": config_hash,
            "source": row["source"],
            "source_row": row["source_row"],
            "id": row["id"],
            "url": row["url"],
            "sha256": row["sha256"],
        },
    }
    if row["captions"]:
        fields["captions"] = [row["captions"][0] | {"tokens": row["tokens"]}, *row["captions"][1:]]
    if subreddit := read_subreddit(row["extra"]):
        fields["subreddit"] = subreddit
    if levels := read_levels(row["extra"]):
        fields["levels"] = levels
    if negatives := read_hard_negatives(row["extra"], [row["caption"][p.start : p.end] for p in phrases]):
        fields["hard_negatives"] = negatives
    return fields


def chosen_columns(extra: str | None, names: Sequence[str]) -> dict[str, Any]:
    """Return the other columns of the input that `names` lists, or all for "*".

    >>> chosen_columns('{"license": "cc0", "width": 640}', ["license", "height"])
    {'license': 'cc0'}
    """
    if not extra or not names:
        return {}
    return {name: value for name, value in read_extra(extra).items() if name in names or "*" in names}


@lru_cache(maxsize=1)  # of one row, several parts are read in turn
def read_extra(extra: str) -> Mapping[str, Any]:
    return cast(dict[str, Any], json.loads(extra))


def read_levels(extra: str | None) -> list[str | None] | None:
    """Return the labels of a taxonomy that `extra` holds: those of read.levels, or a list of texts of the input."""
    value = read_extra(extra).get("levels") if extra and '"levels"' in extra else None
    if not isinstance(value, list) or not any(value):
        return None
    return value if all(label is None or isinstance(label, str) for label in value) else None


def read_hard_negatives(extra: str | None, phrases: Sequence[str]) -> list[HardNegatives]:
    """Return the hard negatives of phrases: those of the region of FineHARD whose cleaned expression has the same letters.

    Without `flag_short_neg` a region has none; what is not a text, or is the phrase itself, is left out.
    """
    regions = read_extra(extra).get("bbox_info") if extra and '"short_expr_negs"' in extra else None
    texts: dict[str, dict[str, None]] = {}
    for region in regions if isinstance(regions, list) else ():
        if not isinstance(region, dict) or not region.get("flag_short_neg"):
            continue
        name, found = clean(str(region.get("short_expr"))).casefold(), region.get("short_expr_negs")
        values = [text.strip() for text in found.values() if isinstance(text, str)] if isinstance(found, dict) else []
        texts.setdefault(name, {}).update(dict.fromkeys(t for t in values if t and t.casefold() != name))
    own = (list(texts.get(phrase.casefold(), ())) for phrase in phrases)
    return [{"parent": number, "texts": found} for number, found in enumerate(own) if found]


def read_subreddit(extra: str | None) -> str | None:
    """Return the column `subreddit` of the input (RedCaps), which `extra` holds; None if it has none.

    Most inputs have none, so the JSON is parsed only if the name occurs in it.
    """
    value = read_extra(extra).get("subreddit") if extra and '"subreddit"' in extra else None
    return value if isinstance(value, str) and value else None
