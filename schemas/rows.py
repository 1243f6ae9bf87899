"""The Arrow schema of a row after each stage: each is the one before plus columns, so their difference is what a stage does.

Every field's metadata holds its description (unit, range, origin); docs/schemas.md is made from it (`python -m schemas.docs`).
Character offsets count Unicode code points, half open [start, end), in `caption`. Boxes are xyxy, fractions of the stored image
in [0, 1]. A dropped row keeps its light columns and has `image` set to null.
"""

from typing import Final

import pyarrow as pa

VERSION: Final = "1.2"
"""MAJOR.MINOR: a change that breaks readers raises the major number, an added column the minor one."""


def field(name: str, type_: pa.DataType, doc: str, nullable: bool = False) -> pa.Field:
    """A field that explains itself: `doc` travels in the schema as metadata."""
    return pa.field(name, type_, nullable, {"doc": doc})


def extend(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """`schema` followed by `fields`."""
    return pa.schema([*schema, *fields], metadata={"hypergrit_schema": VERSION})


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", item, nullable=False))


TOKEN: Final = pa.struct(
    [
        field("start", pa.int32(), "first character of the token in `caption`"),
        field("end", pa.int32(), "one past its last character"),
        field("head", pa.int32(), "index of the head token; the root points at itself"),
        field("dep", pa.string(), "dependency label (spaCy `dep_`)"),
        field("pos", pa.string(), "universal part of speech (spaCy `pos_`)"),
        field("tag", pa.string(), "fine-grained tag (spaCy `tag_`)"),
        field("lemma", pa.string(), "base form; lower-cased text where the model has no lemmatizer"),
    ]
)
CHUNK: Final = pa.struct(
    [
        field("start", pa.int32(), "first character of the noun chunk in `caption`"),
        field("end", pa.int32(), "one past its last character"),
        field("root", pa.int32(), "index of the chunk's head noun in `tokens`; -1 where no parse exists"),
        field(
            "removed",
            pa.string(),
            "why the grounder was not asked for the chunk (PHRASE_REMOVALS; `ground` adds its own), null if it was",
            True,
        ),
    ]
)
REF_EXP: Final = pa.struct(
    [
        field("chunk", pa.int32(), "index in `noun_chunks` of the chunk that is expanded"),
        field("start", pa.int32(), "first character of the expression in `caption`"),
        field("end", pa.int32(), "one past its last character"),
        field("is_maximal", pa.bool_(), "true unless the expression lies inside another one of this caption"),
    ]
)
BOX: Final = pa.struct(
    [
        field("phrase", pa.int32(), "index in `noun_chunks` of the grounded phrase"),
        field("x_min", pa.float32(), "left edge, fraction of the width in [0, 1]"),
        field("y_min", pa.float32(), "top edge, fraction of the height in [0, 1]"),
        field("x_max", pa.float32(), "right edge, fraction of the width in [0, 1]"),
        field("y_max", pa.float32(), "bottom edge, fraction of the height in [0, 1]"),
        field("score", pa.float32(), "grounding confidence in [0, 1]"),
    ]
)
BOX_SCORE: Final = pa.struct(
    [
        field("area_px", pa.float32(), "box area in square pixels of the stored image"),
        field(
            "clip_cosine",
            pa.float32(),
            "cosine of crop and phrase in [-1, 1]; null where an earlier filter removed the box",
            True,
        ),
        field("removed", pa.string(), "why the box is not kept (BOX_REMOVALS), null if it is", True),
    ]
)
GIVEN_BOX: Final = pa.struct(
    [
        field("start", pa.int32(), "first character of the phrase in the caption as given"),
        field("end", pa.int32(), "one past its last character"),
        *[f for f in BOX if f.name != "phrase"],
    ]
)
"""GRIT's positional list [start, end, x_min, y_min, x_max, y_max, score], by name."""

READ: Final = extend(
    pa.schema([]),
    field("key", pa.string(), "name of the row everywhere: its number in the input, 12 digits; set once, by `read`"),
    field("source", pa.string(), "input file the row came from"),
    field("source_row", pa.int64(), "number of the row in that file, from 0"),
    field("id", pa.string(), "the input's own identifier, if it has one", True),
    field("url", pa.string(), "address of the image", True),
    field("caption_original", pa.string(), "caption exactly as the input had it", True),
    field("extra", pa.string(), "the input's other columns, as a JSON object with sorted keys", True),
    field(
        "image",
        pa.binary(),
        "encoded image bytes: the input's own (tars) after `read`, as stored after `download`",
        True,
    ),
    field(
        "given_noun_chunks",
        _list(GIVEN_BOX),
        "GRIT's noun_chunks where the input carries them; grounding is then skipped",
        True,
    ),
    field("given_ref_exps", _list(GIVEN_BOX), "GRIT's ref_exps where the input carries them", True),
    field("status", pa.string(), "'kept' or 'dropped'"),
    field("stage", pa.string(), "the stage that dropped the row, null while it is kept", True),
    field("reason", pa.string(), "why, from the closed list of that stage (REASONS), null while it is kept", True),
    field("detail", pa.string(), "the number or message behind the reason (404, 27 px)", True),
)
DOWNLOADED: Final = extend(
    READ,
    field("width", pa.int32(), "pixels across of the stored image", True),
    field("height", pa.int32(), "pixels down of the stored image", True),
    field("original_width", pa.int32(), "pixels across before resizing, after orientation was applied", True),
    field("original_height", pa.int32(), "pixels down before resizing, after orientation was applied", True),
    field("original_format", pa.string(), "format that arrived: jpeg, png, gif, webp, ...", True),
    field("sha256", pa.string(), "hex SHA-256 of the bytes that arrived", True),
)
CAPTIONED: Final = extend(
    DOWNLOADED,
    field("caption", pa.string(), "cleaned caption; every offset below counts in it", True),
)
PARSED: Final = extend(
    CAPTIONED,
    field("tokens", _list(TOKEN), "the parse: one entry a token, in order", True),
    field(
        "noun_chunks",
        _list(CHUNK),
        "noun chunks in order of the caption, removed ones included; `ground` removes those it cannot ask for",
        True,
    ),
    field("ref_exps", _list(REF_EXP), "referring expression of each chunk that `parse` did not remove", True),
)
GROUNDED: Final = extend(
    PARSED,
    field("boxes", _list(BOX), "boxes above the grounder's floor, after non-maximum suppression, best first", True),
)
SCORED: Final = extend(
    GROUNDED,
    field("box_scores", _list(BOX_SCORE), "measurements and verdict of each box, in the order of `boxes`", True),
    field("clip_similarity", pa.float32(), "cosine of the whole image and the whole caption in [-1, 1]", True),
)

BOUNDARIES: Final = {
    "read": READ,
    "download": DOWNLOADED,
    "captions": CAPTIONED,
    "parse": PARSED,
    "ground": GROUNDED,
    "score": SCORED,
}
"""Schema of the table each stage hands on."""
HEAVY: Final = ("image",)
"""Columns that a dropped row gives up."""
