"""The filters of the score stage, and the drop reason of rows without a kept box."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.score.config import CLIP_SCORE_WEIGHT
from pipeline.score.thresholds import Thresholds
from schemas.status import BOX_REMOVALS
from schemas.table import Drop

BoxScore = dict[str, Any]
"""The measurements of a box (schemas.rows.BOX_SCORE)."""


def clip_score(cosine: float) -> float:
    """CLIPScore, 2.5 * max(cosine, 0) (Hessel et al. 2021, section 3)."""
    return CLIP_SCORE_WEIGHT * max(cosine, 0.0)


def measure_box(box: dict[str, Any], width: int, height: int, thresholds: Thresholds) -> BoxScore:
    """Measure a box, and apply the filters by size and by grounding score. `clip_cosine` is computed later.

    `width` and `height` are those of the image, in pixels.
    """
    box_width, box_height = (box["x_max"] - box["x_min"]) * width, (box["y_max"] - box["y_min"]) * height
    side = thresholds.min_side_px
    columns, rows = (int(box[f"{a}_max"] * n) - int(box[f"{a}_min"] * n) for a, n in (("x", width), ("y", height)))
    match thresholds.size_rule:
        case "area":
            is_small = box_width * box_height < side**2
        case "side":
            is_small = min(box_width, box_height) < side
        case "released":
            is_small = columns * rows <= side**2
    removed = None
    if is_small or not has_crop(box, width, height):
        removed = "box_too_small"
    elif box["score"] < float(np.float32(thresholds.min_score)):  # scores are stored as float32
        removed = "low_score"
    return {"area_px": box_width * box_height, "clip_cosine": None, "removed": removed}


def has_crop(box: dict[str, Any], width: int, height: int) -> bool:
    """Return True if the crop of a box has pixels: its corners are truncated to whole pixels."""
    return all(int(box[f"{axis}_max"] * n) > int(box[f"{axis}_min"] * n) for axis, n in (("x", width), ("y", height)))


def add_cosine(score: BoxScore, cosine: float, thresholds: Thresholds) -> BoxScore:
    """Add the cosine of crop and phrase, and apply the filter by CLIPScore unless an earlier one removed the box."""
    is_low = clip_score(cosine) < thresholds.min_clip_score
    return {**score, "clip_cosine": cosine, "removed": score["removed"] or ("low_clip_score" if is_low else None)}


def why_dropped(boxes: Sequence[dict[str, Any]], scores: Sequence[BoxScore], thresholds: Thresholds) -> Drop:
    """Return the drop reason of a row without a kept box: the last filter that removed a box, and the best value."""
    removed = {score["removed"] for score in scores}
    reason = [name for name in BOX_REMOVALS if name in removed][-1]
    match reason:
        case "low_clip_score":
            best = max(clip_score(score["clip_cosine"]) for score in scores if score["removed"] == reason)
            return Drop(reason, f"best {best:.2f}, threshold {thresholds.min_clip_score:.2f}")
        case "low_score":
            best = max(box["score"] for box, score in zip(boxes, scores, strict=True) if score["removed"] == reason)
            return Drop(reason, f"best {best:.2f}, threshold {thresholds.min_score:.2f}")
        case _:
            return Drop(reason, f"largest {max(score['area_px'] for score in scores):.0f} px")
