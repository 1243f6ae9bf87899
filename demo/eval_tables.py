"""Conversion of scenes to the pipeline's tables, and of the boxes in its tables to predictions."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from demo.world.scenes import Scene
from demo.world.truth import Prediction, prediction_of
from pipeline.images import encode_jpeg
from schemas.rows import CAPTIONED, PARSED
from schemas.status import KEPT
from schemas.table import set_column


def caption_table(scenes: Sequence[Scene]) -> pa.Table:
    """Return scenes as a table in the schema after the captions stage."""
    return pa.Table.from_pylist([caption_row(index, scene) for index, scene in enumerate(scenes)], CAPTIONED)


def prompt_table(scenes: Sequence[Scene]) -> pa.Table:
    """Return scenes with list prompts as a table in the schema after the parse stage; phrases become noun chunks."""
    rows = []
    for index, scene in enumerate(scenes):
        chunks = [{"start": p.start, "end": p.end, "root": -1, "removed": None} for p in scene.phrases]
        rows.append({**caption_row(index, scene), "tokens": [], "noun_chunks": chunks, "ref_exps": []})
    return pa.Table.from_pylist(rows, PARSED)


def caption_row(index: int, scene: Scene) -> dict[str, Any]:
    """Return a scene as a row of `CAPTIONED`."""
    height, width = scene.image.shape[:2]
    return {
        "key": f"{index:012d}",
        "source": "demo.world",
        "source_row": scene.seed,
        "caption_original": scene.caption,
        "caption": scene.caption,
        "image": encode_jpeg(scene.image),
        "width": width,
        "height": height,
        "original_width": width,
        "original_height": height,
        "original_format": "jpeg",
        "status": KEPT,
    }


def read_predictions(table: pa.Table) -> list[list[Prediction]]:
    """Return the boxes of each row with the spans of their phrases; an empty list for a dropped row."""
    rows = table.select(["noun_chunks", "boxes"]).to_pylist()
    return [[prediction_of(row["noun_chunks"][box["phrase"]], box) for box in row["boxes"] or []] for row in rows]


def filter_boxes(table: pa.Table, floor: float) -> pa.Table:
    """Remove the boxes that score below `floor`, as the grounder does with its own floor."""
    boxes = [[box for box in row or [] if box["score"] >= floor] for row in table["boxes"].to_pylist()]
    return set_column(table, "boxes", pa.array(boxes, table.schema.field("boxes").type))
