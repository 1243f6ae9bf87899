"""Read the boxes of a finished output with their scores, and the thresholds at which they can be measured."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pipeline.explore.index import open_output
from pipeline.images import Corners
from pipeline.output import ledger
from pipeline.stages.score.filters import clip_score

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


def read_rows(output: str, keys: Collection[str] | None = None) -> Iterator[FoundRow]:
    """Yield the rows of a finished output that have an image and a caption.

    Rows that a model stage dropped are included, some without boxes; `keys` selects rows.

    Raises UserError like `open_output`.
    """
    where = None if keys is None else ledger.is_one_of("key", keys)
    for row in ledger.read_rows(*open_output(output), COLUMNS, where):
        if row["stage"] in MODEL_STAGES and row["caption"]:
            yield found_row(row)


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


# The thresholds at which an output, or the marked ones of its boxes, have measured precision and recall.

SCORES: Final = tuple(round(0.05 * step, 2) for step in range(20))
CLIP_SCORES: Final = tuple(round(0.05 * step, 2) for step in range(26))


@dataclass(frozen=True, kw_only=True)
class Covered:
    """The thresholds at and above which no box is missing.

    The job compares only boxes of at least `score.min_score` with their phrases, so lower thresholds of the grounding
    score are measured without one of the CLIPScore alone.
    """

    min_score: float  # lowest grounding score without a threshold of the CLIPScore
    min_score_with_clip: float  # lowest grounding score with one
    min_clip_score: float  # lowest CLIPScore; above 0, there are no thresholds without one
    job_clip_score: float  # score.min_clip_score of the job

    def clip_scores(self) -> list[float]:
        """Return the measured thresholds of the CLIPScore in ascending order."""
        return sorted(clip for clip in {*CLIP_SCORES, self.job_clip_score} if clip >= self.min_clip_score)

    def scores(self, clip_score: float) -> list[float]:
        """Return the measured thresholds of the grounding score with one of the CLIPScore, in ascending order."""
        lowest = self.min_score_with_clip if clip_score else self.min_score
        return sorted(score for score in {*SCORES, lowest, self.min_score_with_clip} if score >= lowest)

    def describe(self) -> str:
        """Return the bounds as one line."""
        text = f"measured: score.min_score >= {self.min_score_with_clip:g}"
        if self.min_clip_score:
            return f"{text} with score.min_clip_score >= {self.min_clip_score:g}: marks count as those of kept boxes"
        if self.min_score < self.min_score_with_clip:
            text += (
                f" with any CLIPScore, and >= {self.min_score:g} without one, which the job computed for no box below "
                f"its own threshold of {self.min_score_with_clip:g}"
            )
        return text


def covered(output: str, lowest_mark: float | None = None) -> Covered:
    """Return the thresholds that an output covers, or its marked boxes; of several shards, the highest ones.

    Boxes are marked by hand, so they count as a sample of the kept boxes whose grounding score is at least the lowest one
    of the marked boxes, `lowest_mark`.
    """
    _, manifests = open_output(output)
    thresholds = [manifest["provenance"]["thresholds"] for manifest in manifests]
    score = max(float(values["min_score"]) for values in thresholds)
    clip_score = max(float(values["min_clip_score"]) for values in thresholds)
    if lowest_mark is None:
        return Covered(min_score=0.0, min_score_with_clip=score, min_clip_score=0.0, job_clip_score=clip_score)
    lowest = max(score, math.ceil(lowest_mark * 100) / 100)
    return Covered(min_score=lowest, min_score_with_clip=lowest, min_clip_score=clip_score, job_clip_score=clip_score)
