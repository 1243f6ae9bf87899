"""Thresholds that a box must reach to be kept."""

from dataclasses import dataclass
from typing import Literal

from pipeline.ground.load import score_threshold
from pipeline.score.config import ScoreConfig
from pipeline.score.paths import clip_score_threshold


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The thresholds of ScoreConfig, with null replaced by the calibrated threshold of the grounder or scorer."""

    min_side_px: int
    size_rule: Literal["area", "side", "released"]
    min_score: float
    min_clip_score: float


def resolve_thresholds(config: ScoreConfig, grounder: str) -> Thresholds:
    """Return the thresholds of `config`; null is replaced by the calibrated threshold of the grounder or scorer.

    `grounder` is the setting `ground.grounder`. Raises UserError if a calibrated threshold is not a valid number.

    >>> from pipeline import ScoreConfig, resolve_thresholds
    >>> thresholds = resolve_thresholds(ScoreConfig(min_score=0.7), grounder="miniature")
    >>> thresholds.min_score, thresholds.min_side_px
    (0.7, 32)
    """
    score, clip_score = config.min_score, config.min_clip_score
    return Thresholds(
        min_side_px=config.min_side_px,
        size_rule=config.size_rule,
        min_score=score_threshold(grounder) if score is None else score,
        min_clip_score=clip_score_threshold(config.scorer) if clip_score is None else clip_score,
    )
