"""The files a shard becomes: their names, the members of a training sample, GRIT's columns, and the manifest that commits them."""

from types import MappingProxyType
from typing import Final

import pyarrow as pa

from schemas.rows import field

FILES: Final = MappingProxyType(
    {
        "train": ("train/{:05d}.tar",),
        "grit": ("grit/{:05d}.tar", "grit/{:05d}.parquet"),
        "arrow": ("arrow/{:05d}.arrow",),
    }
)
"""Files of each format below the output folder; the number is the shard's."""
MANIFEST_FOLDER: Final = "_manifests"
MANIFEST_FILE: Final = f"{MANIFEST_FOLDER}/{{:05d}}.json"
TIMINGS_FILE: Final = "_timings/{:05d}.json"

TRAIN_MEMBERS: Final = MappingProxyType(
    {
        "child.jpg": "the whole image, longest side 224, centred on a white 224 x 224 square",
        "child.txt": "the caption, UTF-8",
        "numparents.txt": "how many box-phrase pairs follow, decimal, 1 or more",
        "parent000.jpg": "a box cut out of the stored image and padded as child.jpg; then parent001.jpg and so on",
        "parent000.txt": "its phrase: noun chunks first, then referring expressions, each text once, with its best kept box",
        "json": "what else is known of the sample (next table)",
    }
)
"""Members of one sample of train/NNNNN.tar, each named `<key>.<member>`, in this order: HyCoCLIP's keys, plus a JSON."""
TRAIN_JSON: Final = MappingProxyType(
    {
        "key": "the row's key, as everywhere",
        "caption": "the caption; every offset counts in it",
        "parents": "for each parentNNN: `box` (index in `boxes`), `start`, `end`, `kind` ('noun_chunk' or 'ref_exp')",
        "boxes": "the kept boxes: fields of BOX and BOX_SCORE without `removed`",
        "tokens": "the parse, as in arrow/",
        "noun_chunks": "as in arrow/, removed ones included",
        "ref_exps": "as in arrow/",
        "clip_similarity": "cosine of image and caption, as in arrow/",
        "width, height": "pixels of the stored image the fractions refer to (child.jpg is a padded copy of it)",
        "provenance": "`config_hash` of the run (the manifest holds the rest), `source`, `source_row`, `id`, `url`, `sha256`",
    }
)
"""Fields of `<key>.json` in train/; keys sorted, UTF-8, float32 values in their shortest form."""

_SPAN: Final = pa.list_(pa.list_(pa.float64()))


def grit_schema(similarity: str) -> pa.Schema:
    """Columns of grit/NNNNN.parquet; `similarity` names the column of the scorer's image-caption cosine."""
    return pa.schema(
        [
            field("key", pa.string(), "the row's key; names its tar members"),
            field("id", pa.string(), "the input's own identifier", True),
            field("url", pa.string(), "address of the image", True),
            field(
                "caption", pa.string(), "cleaned caption (as given, where the row was dropped before cleaning)", True
            ),
            field("width", pa.int32(), "pixels across of the stored image", True),
            field("height", pa.int32(), "pixels down of the stored image", True),
            field("original_width", pa.int32(), "pixels across before resizing", True),
            field("original_height", pa.int32(), "pixels down before resizing", True),
            field(similarity, pa.float32(), "cosine of image and caption by the scorer the name ends in", True),
            field(
                "noun_chunks",
                _SPAN,
                "[start, end, x_min, y_min, x_max, y_max, score] of each kept box, best first",
                True,
            ),
            field("ref_exps", _SPAN, "the same boxes with the spans of their referring expressions", True),
            field("sha256", pa.string(), "hex SHA-256 of the bytes that arrived", True),
            field(
                "status", pa.string(), "success, failed_to_download (img2dataset's words), or dropped: by a later stage"
            ),
            field("error_message", pa.string(), "`stage: reason: detail` of a row without a sample", True),
            field("extra", pa.string(), "the input's other columns, as a JSON object with sorted keys", True),
        ]
    )


MANIFEST: Final = MappingProxyType(
    {
        "schema": "version of the schemas (VERSION)",
        "shard": "number of the shard",
        "plan": "the input rows it was made of (ShardPlan)",
        "formats": "which of train, grit and arrow were written",
        "files": "for each file: `bytes`, `sha256`, `rows`",
        "counts": "`read`, `kept`, `dropped` {stage: {reason: n}}; read = kept + all dropped, or there is no manifest",
        "boxes": "kept boxes of the kept rows",
        "phrases": "noun chunks of the kept rows with at least one kept box",
        "asked": "noun chunks of all rows that the grounder was asked for, or that came with boxes",
        "removed": "`phrases` and `boxes`, of all rows: each {why: n}, as in their lists above",
        "provenance": "versions, models by the hash of their weights, the thresholds that decided, and `config_hash`",
        "runtime": "settings that may change between shards of one output: devices, batch sizes, concurrency, time limits",
    }
)
"""Fields of _manifests/NNNNN.json, which is written last: a shard without it does not exist."""
