"""Scenes as the pipeline's tables, and the boxes of its tables as predictions."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from demo.world.scenes import Scene
from demo.world.truth import Prediction, prediction_of
from pipeline.images import encode_jpeg
from schemas.rows import CAPTIONED, PARSED
from schemas.status import KEPT
from schemas.table import set_column


def captioned(scenes: Sequence[Scene]) -> pa.Table:
    """Scenes as they are after `captions`: downloaded, nothing parsed."""
    return pa.Table.from_pylist([row(index, scene) for index, scene in enumerate(scenes)], CAPTIONED)


def listed(scenes: Sequence[Scene]) -> pa.Table:
    """Scenes with list prompts as they are after `parse`, their phrases taken for noun chunks."""
    rows = []
    for index, scene in enumerate(scenes):
        chunks = [{"start": p.start, "end": p.end, "root": -1, "removed": None} for p in scene.phrases]
        rows.append({**row(index, scene), "tokens": [], "noun_chunks": chunks, "ref_exps": []})
    return pa.Table.from_pylist(rows, PARSED)


def row(index: int, scene: Scene) -> dict[str, Any]:
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
    """The boxes of each row with the span of their phrase; none for a row that was dropped."""
    light = table.select(["noun_chunks", "boxes"]).to_pylist()
    return [[prediction_of(row["noun_chunks"][box["phrase"]], box) for box in row["boxes"] or []] for row in light]


def without_weak_boxes(table: pa.Table, floor: float) -> pa.Table:
    """`table` as if the grounder had stored only boxes that score at least `floor`."""
    boxes = [[box for box in row or [] if box["score"] >= floor] for row in table["boxes"].to_pylist()]
    return set_column(table, "boxes", pa.array(boxes, table.schema.field("boxes").type))
