"""Choose the boxes that people judge. The same seed gives the same boxes, whatever the number of shards."""

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from common.errors import UserError
from pipeline.quality.boxes import FoundBox, FoundRow, read_rows
from pipeline.quality.covered import Sample
from pipeline.report.samples import thumbnail
from pipeline.report.shards import read_images
from pipeline.write.store import Store
from schemas.manifest import Manifest

Which = Literal["kept", "all"]
"""Boxes to choose from: those that the job kept, or also those that a threshold of the scores removed."""
BY_THRESHOLD: Final = ("low_score", "low_clip_score")
THUMBNAIL_PX: Final = 480


@dataclass(frozen=True)
class Candidate:
    """A box to be judged, and the sample that it is drawn from."""

    row: FoundRow
    box: FoundBox
    sample: Sample


@dataclass(frozen=True)
class Question:
    """A box to be judged, with its image as a JPEG of `width` x `height` pixels."""

    candidate: Candidate
    jpeg: bytes
    width: int
    height: int


def choose(output: str, n: int, seed: int, which: Which = "kept", min_score: float = 0.0) -> list[Question]:
    """Choose `n` boxes by a hash of the seed, the row's key and the box's number, in the order of the hash.

    Each box with at least this grounding score has the same chance. Boxes whose image is not stored are left out.
    Images of dropped rows are not stored. A sample of all boxes that lacks some of them is named as one of kept boxes,
    since only of those it is complete. Raises UserError without any box.
    """
    ranked = heapq.nsmallest(n, candidates(output, seed, which, min_score), key=lambda item: item[0])
    if not ranked:
        raise UserError(f"{output} has no box to judge; run the job first, or pass --of all or a lower --min-score")
    images: dict[str, bytes] = {}
    store = Store(output)
    shards = {manifest["shard"]: manifest for _, manifest, _ in ranked}
    for shard, manifest in sorted(shards.items()):
        keys = {candidate.row.key for _, m, candidate in ranked if m["shard"] == shard}
        images |= read_images(store, manifest, keys)
    shown = [candidate for _, _, candidate in ranked if candidate.row.key in images]
    sample = Sample(which == "all" and len(shown) == len(ranked), min_score)
    found = [
        Question(replace(candidate, sample=sample), *thumbnail(images[candidate.row.key], THUMBNAIL_PX))
        for candidate in shown
    ]
    if not found:
        raise UserError(
            f"{output} has no images; run the job with write.formats=[arrow,grit] or write.image_bytes=true"
        )
    return found


def candidates(output: str, seed: int, which: Which, min_score: float) -> Iterator[tuple[str, Manifest, Candidate]]:
    """Yield the boxes to choose from with their rank."""
    for manifest, row in read_rows(output):
        for box in row.boxes:
            is_chosen = box.removed is None or (which == "all" and box.removed in BY_THRESHOLD)
            if is_chosen and box.score >= min_score:
                text = f"{seed}:{row.key}:{box.number}"
                yield (
                    hashlib.sha256(text.encode()).hexdigest(),
                    manifest,
                    Candidate(row, box, Sample(which == "all", min_score)),
                )
