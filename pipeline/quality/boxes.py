"""Read the boxes of a finished output with their scores."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from common.errors import UserError
from pipeline.report.shards import check_finished, read_batches, read_manifests
from pipeline.score.filters import clip_score
from pipeline.write.pending import check_nothing_pending
from pipeline.write.store import Store
from schemas.manifest import Manifest

Corners = tuple[float, float, float, float]
"""x_min, y_min, x_max, y_max as fractions of width and height."""
COLUMNS: Final = ("key", "id", "url", "stage", "caption", "noun_chunks", "boxes", "box_scores")
MODEL_STAGES: Final = (None, "parse", "ground", "score")
"""Stages that may have dropped a row with an image and a caption; None: no stage did."""


@dataclass(frozen=True, kw_only=True)
class FoundBox:
    """A box of the output. `clip_score`: None for boxes that an earlier filter removed."""

    number: int  # index in the column `boxes`
    start: int
    end: int
    corners: Corners
    score: float
    clip_score: float | None
    removed: str | None


@dataclass(frozen=True, kw_only=True)
class FoundRow:
    """A row of the output with its caption and boxes."""

    key: str
    id: str | None
    url: str | None
    caption: str
    boxes: tuple[FoundBox, ...]

    def phrase(self, box: FoundBox) -> str:
        """Return the phrase of a box."""
        return self.caption[box.start : box.end]


def read_rows(output: str, keys: Collection[str] | None = None) -> Iterator[tuple[Manifest, FoundRow]]:
    """Yield the rows of a finished output that have an image and a caption, with the manifest of their shard.

    Rows that a model stage dropped are included, some without boxes; `keys` selects rows.

    Raises UserError if the output has no finished shard or no arrow/ files.
    """
    store = Store(output)
    check_nothing_pending(store)
    manifests = read_manifests(store)
    check_finished(store, manifests)
    if not any(name.startswith("arrow/") for manifest in manifests for name in manifest["files"]):
        raise UserError(
            f"{output} has no arrow/ files, which hold the scores; run the job with write.formats=[arrow,...]"
        )
    wanted = None if keys is None else pa.array(sorted(keys), pa.string())
    for manifest in manifests:
        for batch in read_batches(store, manifest, COLUMNS):
            found = batch if wanted is None else batch.filter(pc.is_in(batch["key"], wanted))
            for row in found.to_pylist():
                if row["stage"] in MODEL_STAGES and row["caption"]:
                    yield manifest, found_row(row)


def found_row(row: dict[str, Any]) -> FoundRow:
    """Convert a row of arrow/ with COLUMNS."""
    chunks, boxes = row["noun_chunks"], []
    pairs = zip(row["boxes"] or (), row["box_scores"] or (), strict=True)
    for number, (box, measured) in enumerate(pairs):
        cosine = measured["clip_cosine"]
        boxes.append(
            FoundBox(
                number=number,
                start=chunks[box["phrase"]]["start"],
                end=chunks[box["phrase"]]["end"],
                corners=(box["x_min"], box["y_min"], box["x_max"], box["y_max"]),
                score=box["score"],
                clip_score=None if cosine is None else clip_score(cosine),
                removed=measured["removed"],
            )
        )
    return FoundRow(key=row["key"], id=row["id"], url=row["url"], caption=row["caption"], boxes=tuple(boxes))


def iou(a: Corners, b: Corners) -> float:
    """Return the intersection over union of two boxes."""
    shared = overlap(a, b)
    union = area(a) + area(b) - shared
    return shared / union if union > 0 else 0.0


def overlap(a: Corners, b: Corners) -> float:
    """Return the area of the intersection of two boxes."""
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0.0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)


def area(box: Corners) -> float:
    """Return the area of a box; 0 if it is empty."""
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)
