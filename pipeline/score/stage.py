"""Score boxes and keep the good ones: size, then grounding score, then CLIP score of crop against phrase."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from common.images import Image
from pipeline.ground.load import score_threshold
from pipeline.images import corners, crop_box
from pipeline.score.config import CLIP_SCORE_WEIGHT, ScoreConfig
from pipeline.score.scorers import Scorer, clip_score_threshold, load_scorer
from pipeline.stored_images import StoredImages
from schemas.rows import SCORED
from schemas.status import BOX_REMOVALS
from schemas.table import Drop, add_columns, drop_rows, kept_indices

ROWS: Final = 64  # decoded at a time; bounds the memory, not the batches of the network


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What a box must reach, resolved."""

    min_side_px: int
    size_rule: Literal["area", "side"]
    min_score: float
    min_clip_score: float


def resolve_thresholds(config: ScoreConfig, grounder: str) -> Thresholds:
    """The config's thresholds, or the models' own calibrations where it sets none."""
    score, clip_score = config.min_score, config.min_clip_score
    return Thresholds(
        min_side_px=config.min_side_px,
        size_rule=config.size_rule,
        min_score=score_threshold(grounder) if score is None else score,
        min_clip_score=clip_score_threshold(config.scorer) if clip_score is None else clip_score,
    )


class Score:
    """Adds `box_scores` and `clip_similarity`; a row that loses its last box is dropped for the reason of the last filter."""

    def __init__(
        self,
        config: ScoreConfig,
        grounder: str = "miniature",
        scorer: Scorer | None = None,
        decode: StoredImages | None = None,
    ) -> None:
        """`grounder` is the one whose calibration decides where `min_score` is not set; `decode` may be shared with other stages."""
        self.decode = decode or StoredImages(max_bytes=0)
        self.thresholds = resolve_thresholds(config, grounder)
        self.scorer = scorer or load_scorer(config.scorer, config.device, config.batch_size)

    def __call__(self, table: pa.Table) -> pa.Table:
        kept, found, drops = kept_indices(table), {}, {}
        needed = table.select(["image", "caption", "noun_chunks", "boxes"])
        for start in range(0, len(kept), ROWS):
            indices = kept[start : start + ROWS]
            rows = needed.take(indices).to_pylist()
            images = [self.decode(row["image"]) for row in rows]
            for i, row, scores, similarity in zip(indices, rows, *self._score(rows, images), strict=True):
                found[i] = {"box_scores": scores, "clip_similarity": similarity}
                if similarity is None:
                    drops[i] = why_dropped(row["boxes"], scores, self.thresholds)
        return drop_rows(add_columns(table, SCORED, found), "score", drops)

    def _score(
        self, rows: Sequence[dict[str, Any]], images: Sequence[Image]
    ) -> tuple[list[list[dict[str, Any]]], list[float | None]]:
        """Box scores of each row, and its image-caption similarity if a box is left."""
        scores = [
            [judge(box, image.shape[1], image.shape[0], self.thresholds) for box in row["boxes"]]
            for row, image in zip(rows, images, strict=True)
        ]
        passed = [
            (r, b) for r, verdicts in enumerate(scores) for b, verdict in enumerate(verdicts) if not verdict["removed"]
        ]
        crops = [crop_box(images[r], corners(rows[r]["boxes"][b])) for r, b in passed]
        cosines = self._cosines(crops, [phrase(rows[r], rows[r]["boxes"][b]) for r, b in passed])
        for (r, b), cosine in zip(passed, cosines, strict=True):
            is_low = clip_score(cosine) < self.thresholds.min_clip_score
            scores[r][b] |= {"clip_cosine": cosine, "removed": "low_clip_score" if is_low else None}
        left = [r for r, verdicts in enumerate(scores) if any(not verdict["removed"] for verdict in verdicts)]
        whole = self._cosines([images[r] for r in left], [rows[r]["caption"] for r in left])
        similarity = dict(zip(left, whole, strict=True))
        return scores, [similarity.get(r) for r in range(len(rows))]

    def _cosines(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """Cosine of each image with its text; equal texts are embedded once."""
        if not images:
            return []
        distinct = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        text_features = self.scorer.embed_texts(list(distinct))[[distinct[text] for text in texts]]
        return (self.scorer.embed_images(images) * text_features).sum(dim=-1).tolist()


def clip_score(cosine: float) -> float:
    """CLIPScore, 2.5 * max(cosine, 0) (Hessel et al. 2021, section 3)."""
    return CLIP_SCORE_WEIGHT * max(cosine, 0.0)


def judge(box: dict[str, Any], width: int, height: int, thresholds: Thresholds) -> dict[str, Any]:
    """schemas.rows.BOX_SCORE of a box before CLIP has seen it."""
    across, down = (box["x_max"] - box["x_min"]) * width, (box["y_max"] - box["y_min"]) * height
    side = thresholds.min_side_px
    is_small = across * down < side**2 if thresholds.size_rule == "area" else min(across, down) < side
    # Corners are cut to whole pixels: a thin box may hold none.
    is_empty = any(int(box[f"{a}_max"] * n) <= int(box[f"{a}_min"] * n) for a, n in (("x", width), ("y", height)))
    removed = None
    if is_small or is_empty:
        removed = "box_too_small"
    elif box["score"] < float(np.float32(thresholds.min_score)):  # as the score is stored
        removed = "low_score"
    return {"area_px": across * down, "clip_cosine": None, "removed": removed}


def why_dropped(boxes: Sequence[dict[str, Any]], scores: Sequence[dict[str, Any]], thresholds: Thresholds) -> Drop:
    """The last filter that removed a box, and the best figure that reached it."""
    removed = {score["removed"] for score in scores}
    reason = [name for name in BOX_REMOVALS if name in removed][-1]
    match reason:
        case "low_clip_score":
            best = max(clip_score(score["clip_cosine"]) for score in scores if score["clip_cosine"] is not None)
            return Drop(reason, f"best {best:.2f}, wanted {thresholds.min_clip_score:.2f}")
        case "low_score":
            best = max(box["score"] for box, score in zip(boxes, scores, strict=True) if score["removed"] == reason)
            return Drop(reason, f"best {best:.2f}, wanted {thresholds.min_score:.2f}")
        case _:
            return Drop(reason, f"largest {max(score['area_px'] for score in scores):.0f} px")


def phrase(row: dict[str, Any], box: dict[str, Any]) -> str:
    """The noun chunk of a box, as the caption has it."""
    chunk = row["noun_chunks"][box["phrase"]]
    return row["caption"][chunk["start"] : chunk["end"]]
