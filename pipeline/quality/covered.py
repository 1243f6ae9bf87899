"""The thresholds at which an output, or a sample of its boxes, has measured precision and recall."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.report.shards import read_manifests
from pipeline.write.store import Store

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
    thresholds = [manifest["provenance"]["thresholds"] for manifest in read_manifests(Store(output))]
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

    Forms of earlier versions do not name their sample (None). Then it is taken to be of kept boxes, of at least the
    lowest of `scores`, those of the marked boxes.
    """
    named = [sample for sample in samples if sample is not None]
    lowest = max((sample.min_score for sample in named), default=0.0)
    if len(named) == len(samples):
        return Sample(all(sample.of_all for sample in named), lowest)
    return Sample(False, max(lowest, math.ceil(min(scores) * 100) / 100))
