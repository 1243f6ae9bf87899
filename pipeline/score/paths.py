"""The weights and the calibrated threshold of the scorer that `score.scorer` names; no model is loaded."""

from pathlib import Path
from typing import Final

from pipeline.model_cache import local_model
from pipeline.model_folder import calibrated_threshold, read_model_config
from pipeline.score.config import CLIP_SCORE_WEIGHT

MINIATURE: Final = Path(__file__).parents[2] / "demo" / "weights" / "clip"
CLIP_SCORE_THRESHOLD: Final = 0.65
"""CLIPScore threshold of a scorer without calibration: a cosine of 0.26, as in HyCoCLIP (appendix A)."""


def scorer_path(scorer: str) -> str:
    """Return the path of the scorer's weights: of a URL, that of its copy. Other names are returned unchanged.

    Raises UserError like `local_model`.
    """
    return str(MINIATURE) if scorer == "miniature" else local_model(scorer)


def clip_score_threshold(scorer: str) -> float:
    """Return the calibrated CLIPScore threshold of a scorer, or CLIP_SCORE_THRESHOLD if it has none.

    Raises UserError if the threshold in its config.json is not a number from 0 to 2.5.
    """
    config, keys = read_model_config(Path(scorer_path(scorer))), [("thresholds", "clip_score")]
    return calibrated_threshold(
        config, keys, otherwise=CLIP_SCORE_THRESHOLD, most=CLIP_SCORE_WEIGHT, model=f"scorer {scorer!r}"
    )
