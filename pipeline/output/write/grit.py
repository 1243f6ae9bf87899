"""Write grit/: the layout of img2dataset (a tar and a parquet) with the columns of the GRIT release.

Boxes are written as in GRIT, as lists [start, end, x_min, y_min, x_max, y_max, score].
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.output.write.samples import Row, grounded_phrases, shortest_float, to_json
from schemas.files import GRIT_CAPTION, GRIT_IMAGE, GRIT_JSON, grit_schema
from schemas.status import KEPT

GRIT_SCORERS: Final = {"clip-vit-base-patch32": "vitb32", "clip-vit-large-patch14": "vitl14"}
"""OpenAI's CLIP models -> their short names in GRIT's columns."""


def similarity_column(scorer: str) -> str:
    """Return the name of the similarity column: GRIT's name for OpenAI's models, else `clip_similarity_<scorer>`."""
    name = scorer.rstrip("/").rsplit("/", 1)[-1].lower()
    return f"clip_similarity_{GRIT_SCORERS.get(name) or re.sub('[^a-z0-9]+', '_', name).strip('_')}"


def grit_columns(row: Row, similarity: str) -> dict[str, Any]:
    """Return the columns of one row (schemas.files.grit_schema); `similarity` is the name of the similarity column."""
    is_kept = row["status"] == KEPT
    return {
        **{name: row[name] for name in ("key", "id", "url")},
        "caption": row["caption_original"] if row["caption"] is None else row["caption"],
        **{name: row[name] for name in ("width", "height", "original_width", "original_height")},
        similarity: shortest_float(row["clip_similarity"]),
        **(grit_boxes(row) if is_kept else {"noun_chunks": None, "ref_exps": None}),
        "sha256": row["sha256"],
        "status": "success" if is_kept else "failed_to_download" if row["stage"] == "download" else "dropped",
        "error_message": None if is_kept else ": ".join(filter(None, (row["stage"], row["reason"], row["detail"]))),
        "extra": with_captions(row["extra"], row["captions"]),
    }


def grit_boxes(row: Row) -> dict[str, list[list[float]]]:
    """Return GRIT's lists `noun_chunks` and `ref_exps` of the kept boxes of a row."""
    spans: dict[str, list[list[float]]] = {"noun_chunk": [], "ref_exp": []}
    for phrase in grounded_phrases(row):
        box = row["boxes"][phrase.box]
        numbers = [shortest_float(box[name]) or 0.0 for name in ("x_min", "y_min", "x_max", "y_max", "score")]
        spans[phrase.kind].append([phrase.start, phrase.end, *numbers])
    return {f"{kind}s": found for kind, found in spans.items()}


def with_captions(extra: str | None, captions: Sequence[dict[str, Any]] | None) -> str | None:
    """Return the other columns of the input with the captions of a row that has several, as `captions`."""
    if not captions:
        return extra
    listed = [{"kind": caption["kind"], "text": caption["text"]} for caption in captions]
    return json.dumps({**json.loads(extra or "{}"), "captions": listed}, sort_keys=True)


def grit_sample(row: Row, columns: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a kept row's sample, as (extension, content).

    The JSON also contains the other columns of the input, except those with the name of a GRIT column.
    """
    yield GRIT_IMAGE, row["image"]
    yield GRIT_CAPTION, row["caption"].encode()
    values = {name: value for name, value in columns.items() if name != "extra"}
    yield GRIT_JSON, to_json({**json.loads(columns["extra"] or "{}"), **values})


def write_grit_parquet(
    file: IO[bytes], rows: Sequence[dict[str, Any]], similarity: str, metadata: dict[str, str]
) -> None:
    """Write the parquet with one row per input row, with a status as in img2dataset.

    `rows` are results of `grit_columns`.
    """
    schema = grit_schema(similarity).with_metadata(metadata)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), file, compression="zstd")
