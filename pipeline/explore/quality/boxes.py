"""Read the boxes of a finished output with their scores."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.explore.index import open_output
from pipeline.output.ledger import read_batches
from pipeline.stages.score.filters import clip_score
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

    Raises UserError like `open_output`.
    """
    store, manifests = open_output(output)
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


# The thresholds at which an output, or a sample of its boxes, has measured precision and recall.

SCORES: Final = tuple(round(0.05 * step, 2) for step in range(20))
CLIP_SCORES: Final = tuple(round(0.05 * step, 2) for step in range(26))


@dataclass(frozen=True)
class Sample:
    """The boxes from which a sample was drawn: of at least `min_score`, kept by the job or all of sufficient size."""

    of_all: bool
    min_score: float


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
            return f"{text} with score.min_clip_score >= {self.min_clip_score:g}, as the sample holds no other boxes"
        if self.min_score < self.min_score_with_clip:
            text += (
                f" with any CLIPScore, and >= {self.min_score:g} without one, which the job computed for no box below "
                f"its own threshold of {self.min_score_with_clip:g}"
            )
        return text


def covered(output: str, sample: Sample | None = None) -> Covered:
    """Return the thresholds that an output covers, or a sample of its boxes; of several shards, the highest ones."""
    _, manifests = open_output(output)
    thresholds = [manifest["provenance"]["thresholds"] for manifest in manifests]
    score = max(float(values["min_score"]) for values in thresholds)
    clip_score = max(float(values["min_clip_score"]) for values in thresholds)
    lowest = 0.0 if sample is None else sample.min_score
    has_all = sample is None or sample.of_all
    return Covered(
        min_score=lowest if has_all else max(lowest, score),
        min_score_with_clip=max(lowest, score),
        min_clip_score=0.0 if has_all else clip_score,
        job_clip_score=clip_score,
    )


def common_sample(samples: Sequence[Sample | None], scores: Sequence[float]) -> Sample:
    """Return what the samples of several marks have in common.

    Boxes that were chosen by hand have none (None). Then it is taken to be of kept boxes, of at least the lowest of
    `scores`, those of the marked boxes.
    """
    named = [sample for sample in samples if sample is not None]
    lowest = max((sample.min_score for sample in named), default=0.0)
    if len(named) == len(samples):
        return Sample(all(sample.of_all for sample in named), lowest)
    return Sample(False, max(lowest, math.ceil(min(scores) * 100) / 100))


# The names by which the images of a file of known boxes are found.

Image = TypeVar("Image")


@dataclass(frozen=True, kw_only=True)
class ImageNames(Generic[Image]):
    """Name -> image. A `shadowed` name belongs to one image as id (or file name), and to another as file name or stem.

    `ambiguous` names belong to several images and find none.
    """

    images: dict[str, Image]
    shadowed: frozenset[str]
    ambiguous: frozenset[str]


def image_names(images: Sequence[tuple[str, str, Image]]) -> ImageNames[Image]:
    """Index images, given as (id, file name or "", image), by id, then by file name, then by its stem.

    A folder in the file name is ignored. A name of several images of one kind is ambiguous, unless it is the id of one.
    """
    found: dict[str, Image] = {}
    shadowed: set[str] = set()
    ambiguous: set[str] = set()
    paths = [PurePosixPath(file) for _, file, _ in images]
    for names in ([id_ for id_, _, _ in images], [path.name for path in paths], [path.stem for path in paths]):
        of_name: defaultdict[str, list[Image]] = defaultdict(list)
        for name, (_, _, image) in zip(names, images, strict=True):
            if name:
                of_name[name].append(image)
        for name, same in of_name.items():
            if name in found:
                shadowed.update({name} if any(image is not found[name] for image in same) else ())
            elif len(same) == 1 and name not in ambiguous:
                found[name] = same[0]
            else:
                ambiguous.add(name)
    return ImageNames(images=found, shadowed=frozenset(shadowed), ambiguous=frozenset(ambiguous))
