"""The Arrow schema of the table after each stage.

Each schema is the previous one plus the columns that the stage adds. The metadata of a field holds its description
(unit, range, origin), from which `python -m schemas.docs` generates docs/schemas.md.

Character offsets count Unicode code points in `caption`, half-open [start, end). Boxes are xyxy, as fractions of the
stored image in [0, 1]. A dropped row keeps all columns but `image`, which becomes null, except that with
`score.keep_all` rows dropped by `score` keep their images.
"""

from typing import Final

import pyarrow as pa

from schemas.scores import CROP_SCORES, ROW_COLUMNS

VERSION: Final = "1.4"
"""MAJOR.MINOR: a new column increases the minor number. Verbs refuse outputs of another version."""


def field(name: str, type_: pa.DataType, doc: str, nullable: bool = False) -> pa.Field:
    """Return an Arrow field with the description `doc` in its metadata."""
    return pa.field(name, type_, nullable, {"doc": doc})


def extend(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """Return `schema` with `fields` appended."""
    return pa.schema([*schema, *fields], metadata={"hypergrit_schema": VERSION})


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", item, nullable=False))


TOKEN: Final = pa.struct(
    [
        field("start", pa.int32(), "first character of the token in `caption`"),
        field("end", pa.int32(), "one past its last character"),
        field("head", pa.int32(), "index of the head token; the root is its own head"),
        field("dep", pa.string(), "dependency label (spaCy `dep_`)"),
        field("pos", pa.string(), "universal part of speech (spaCy `pos_`)"),
        field("tag", pa.string(), "fine-grained tag (spaCy `tag_`)"),
        field("lemma", pa.string(), "base form; the lower-case text if the model has no lemmatizer"),
    ]
)
CHUNK: Final = pa.struct(
    [
        field("start", pa.int32(), "first character of the noun chunk in `caption`"),
        field("end", pa.int32(), "one past its last character"),
        field("root", pa.int32(), "index of the head noun of the chunk in `tokens`; -1 if the chunk has no token"),
        field(
            "removed",
            pa.string(),
            "reason why `parse` or `ground` removed the chunk (PHRASE_REMOVALS), null if it was not removed",
            True,
        ),
    ]
)
REF_EXP: Final = pa.struct(
    [
        field("chunk", pa.int32(), "index in `noun_chunks` of the chunk that the expression extends"),
        field("start", pa.int32(), "first character of the expression in `caption`"),
        field("end", pa.int32(), "one past its last character"),
        field("is_maximal", pa.bool_(), "true unless another expression of the caption contains this one"),
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
        *(field(score.column, pa.float32(), score.doc, True) for score in CROP_SCORES),
        field("removed", pa.string(), "reason why the box was removed (BOX_REMOVALS), null if it is kept", True),
    ]
)
GIVEN_BOX: Final = pa.struct(
    [
        field("start", pa.int32(), "first character of the phrase in `caption_original`"),
        field("end", pa.int32(), "one past its last character"),
        *[f for f in BOX if f.name != "phrase"],
    ]
)
"""One box of GRIT: its list [start, end, x_min, y_min, x_max, y_max, score] as named fields."""

CAPTION: Final = pa.struct(
    [
        field("kind", pa.string(), "name of its column in the input; original if it was alone; recaption"),
        field("text", pa.string(), "the caption; cleaned, if the row has a `caption`"),
        field(
            "tokens", _list(TOKEN), "its parse; null for the first one, whose parse is `tokens`, and without one", True
        ),
    ]
)
"""One of several captions of a row."""

READ: Final = extend(
    pa.schema([]),
    field(
        "key", pa.string(), "identifier of the row in all outputs: its index in the input as 12 digits, set by `read`"
    ),
    field(
        "source",
        pa.string(),
        "input file of the row: `N/` and its path below the folder of index N in `folders` of `_job.json`, which alone has "
        "full paths, or its URL without user and query, which several URLs may share; a merge puts the index of its source before it",
    ),
    field("source_row", pa.int64(), "index of the row in that file, from 0"),
    field("id", pa.string(), "identifier of the row in the input, if any", True),
    field("url", pa.string(), "URL of the image", True),
    field("caption_original", pa.string(), "caption exactly as in the input", True),
    field(
        "captions",
        _list(CAPTION),
        "all captions of the row, the first of which is `caption`, with `read.captions=all` or `recaption`",
        True,
    ),
    field("extra", pa.string(), "the other columns of the input, as a JSON object with sorted keys", True),
    field(
        "image",
        pa.binary(),
        "encoded image bytes: after `read` those of the input (tars), after `download` the stored image",
        True,
    ),
    field(
        "given_noun_chunks",
        _list(GIVEN_BOX),
        "GRIT's noun_chunks, if the input has them; grounding is then skipped",
        True,
    ),
    field("given_ref_exps", _list(GIVEN_BOX), "GRIT's ref_exps, if the input has them", True),
    field("status", pa.string(), "'kept' or 'dropped'"),
    field("stage", pa.string(), "stage that dropped the row, null while the row is kept", True),
    field("reason", pa.string(), "drop reason of that stage (REASONS), null while the row is kept", True),
    field("detail", pa.string(), "number or message that explains the reason (404, 27 px)", True),
)
DOWNLOADED: Final = extend(
    READ,
    field("width", pa.int32(), "width of the stored image in pixels", True),
    field("height", pa.int32(), "height of the stored image in pixels", True),
    field("original_width", pa.int32(), "width in pixels before resizing, in upright orientation", True),
    field("original_height", pa.int32(), "height in pixels before resizing, in upright orientation", True),
    field("original_format", pa.string(), "format of the downloaded image: jpeg, png, gif, webp, ...", True),
    field("sha256", pa.string(), "hex SHA-256 of the image bytes that were received", True),
)
CAPTIONED: Final = extend(
    DOWNLOADED,
    field("caption", pa.string(), "cleaned caption, to which the offsets in later columns refer", True),
)
PARSED: Final = extend(
    CAPTIONED,
    field("tokens", _list(TOKEN), "the parse: one entry per token, in order", True),
    field(
        "noun_chunks",
        _list(CHUNK),
        "noun chunks in the order of the caption, removed ones included; `ground` may remove more",
        True,
    ),
    field("ref_exps", _list(REF_EXP), "referring expression of each chunk that `parse` did not remove", True),
    field(
        "given_chunks",
        _list(pa.int32()),
        "index in `noun_chunks` of each entry of `given_noun_chunks`; "
        "-1 if its phrase was not found in the cleaned caption",
        True,
    ),
)
GROUNDED: Final = extend(
    PARSED,
    field(
        "boxes",
        _list(BOX),
        "boxes of the grounder (score at least `ground.floor`, after non-maximum suppression) or the input, best first",
        True,
    ),
    field(
        "presence",
        pa.list_(pa.float32()),
        "probability that the image shows each noun chunk, in their order (null: not grounded), if the grounder says so: "
        "SAM 3",
        True,
    ),
    field(
        "has_expression",
        _list(pa.bool_()),
        "whether each box has the referring expression of its noun chunk, in the order of `boxes`; null: each has. Only with "
        "`ground.check_expressions`",
        True,
    ),
)
SCORED: Final = extend(
    GROUNDED,
    field("box_scores", _list(BOX_SCORE), "measurements and filter result of each box, in the order of `boxes`", True),
    *(field(name, pa.float32(), score.doc, True) for name, score in ROW_COLUMNS.items()),
)

HEAVY: Final = ("image",)
"""Columns that become null when a row is dropped."""
