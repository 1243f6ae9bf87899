"""grit/: img2dataset's form (jpg, txt, json a sample, a parquet beside the tar) with the columns GRIT was released with.

Here, at the border, boxes are GRIT's positional lists again: [start, end, x_min, y_min, x_max, y_max, score].
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.write.samples import Row, grounded_phrases, shortest, to_json
from schemas.files import grit_schema
from schemas.status import KEPT

GRIT_SCORERS: Final = {"clip-vit-base-patch32": "vitb32", "clip-vit-large-patch14": "vitl14"}
"""GRIT's own short names, for the checkpoints they stand for."""


def similarity_column(scorer: str) -> str:
    """GRIT's `clip_similarity_vitb32` for OpenAI's models, `clip_similarity_<name>` for others."""
    name = scorer.rstrip("/").rsplit("/", 1)[-1].lower()
    return f"clip_similarity_{GRIT_SCORERS.get(name) or re.sub('[^a-z0-9]+', '_', name).strip('_')}"


def grit_columns(row: Row, ref_exps: str, similarity: str) -> dict[str, Any]:
    """One row's columns (schemas.files.grit_schema)."""
    is_kept = row["status"] == KEPT
    spans: dict[str, list[list[float]]] = {"noun_chunk": [], "ref_exp": []}
    for phrase in grounded_phrases(row, ref_exps) if is_kept else ():
        box = row["boxes"][phrase.box]
        numbers = [shortest(box[name]) or 0.0 for name in ("x_min", "y_min", "x_max", "y_max", "score")]
        spans[phrase.kind].append([phrase.start, phrase.end, *numbers])
    return {
        **{name: row[name] for name in ("key", "id", "url")},
        "caption": row["caption_original"] if row["caption"] is None else row["caption"],
        **{name: row[name] for name in ("width", "height", "original_width", "original_height")},
        similarity: shortest(row["clip_similarity"]),
        "noun_chunks": spans["noun_chunk"] if is_kept else None,
        "ref_exps": spans["ref_exp"] if is_kept else None,
        "sha256": row["sha256"],
        "status": "success" if is_kept else "failed_to_download" if row["stage"] == "download" else "dropped",
        "error_message": None if is_kept else ": ".join(filter(None, (row["stage"], row["reason"], row["detail"]))),
        "extra": row["extra"],
    }


def grit_sample(row: Row, columns: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Members of the sample of one kept row; its JSON holds the input's other columns too, unless one of ours has that name."""
    yield "jpg", row["image"]
    yield "txt", row["caption"].encode()
    ours = {name: value for name, value in columns.items() if name != "extra"}
    yield "json", to_json({**json.loads(columns["extra"] or "{}"), **ours})


def write_grit_parquet(
    file: IO[bytes], rows: Sequence[dict[str, Any]], similarity: str, metadata: dict[str, str]
) -> None:
    """One row an input row, dropped ones with their status, as img2dataset does."""
    schema = grit_schema(similarity).with_metadata(metadata)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), file, compression="zstd")
