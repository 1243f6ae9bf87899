"""Stage `score`: keep boxes with sufficient size, grounding score and CLIPScore."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from common.images import Image
from pipeline.images import corners, crop_box
from pipeline.score.config import ScoreConfig
from pipeline.score.filters import BoxScore, clip_score, measure_box, why_dropped
from pipeline.score.scorers import Scorer, load_scorer
from pipeline.score.thresholds import Thresholds
from pipeline.stored_images import StoredImages
from schemas.rows import SCORED
from schemas.table import add_columns, drop_rows, kept_indices

ROWS_IN_MEMORY: Final = 64
"""Number of rows whose images are decoded at a time. The batch size of the model is `score.batch_size`."""

Row = dict[str, Any]


class Score:
    """Filter boxes by size, grounding score and CLIPScore. Takes a GROUNDED table and returns a SCORED table.

    Adds `box_scores`, whose field `removed` is the reason if a box is not kept, and `clip_similarity`, the cosine of
    image and caption. A row without a kept box is dropped as `box_too_small`, `low_score` or `low_clip_score`, after
    the last filter that removed a box.

    Raises UserError if the scorer cannot be loaded.

    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from pipeline import Score, ScoreConfig, resolve_thresholds
    >>> from pipeline.images import encode_jpeg
    >>> from schemas.rows import GROUNDED
    >>> box = {"phrase": 0, "x_min": 0.0, "y_min": 0.0, "x_max": 0.2, "y_max": 0.2, "score": 0.9}
    >>> row = {"key": "0", "source": "pairs.csv", "source_row": 0, "status": "kept", "caption": "a dog", "boxes": [box]}
    >>> row["noun_chunks"] = [{"start": 0, "end": 5, "root": 1}]
    >>> row["image"] = encode_jpeg(np.full((100, 100, 3), 255, np.uint8))
    >>> config = ScoreConfig(scorer="miniature")
    >>> score = Score(config, resolve_thresholds(config, grounder="miniature"))
    >>> table = score(pa.Table.from_pylist([row], schema=GROUNDED))
    >>> table["reason"][0].as_py(), table["detail"][0].as_py()
    ('box_too_small', 'largest 400 px')
    """

    def __init__(
        self,
        config: ScoreConfig,
        thresholds: Thresholds,
        scorer: Scorer | None = None,
        decode: StoredImages | None = None,
    ) -> None:
        """Load the scorer of `config` unless one is given; share `decode` with other stages to decode images once."""
        self.thresholds = thresholds
        self.scorer = scorer or load_scorer(config.scorer, config.device, config.batch_size)
        self.decode = decode or StoredImages(max_bytes=0)

    def __call__(self, table: pa.Table) -> pa.Table:
        kept, found, drops = kept_indices(table), {}, {}
        needed = table.select(["image", "caption", "noun_chunks", "boxes"])
        for start in range(0, len(kept), ROWS_IN_MEMORY):
            indices = kept[start : start + ROWS_IN_MEMORY]
            rows = needed.take(indices).to_pylist()
            images = [self.decode(row["image"]) for row in rows]
            for i, row, scores, similarity in zip(indices, rows, *self._score(rows, images), strict=True):
                found[i] = {"box_scores": scores, "clip_similarity": similarity}
                if similarity is None:
                    drops[i] = why_dropped(row["boxes"], scores, self.thresholds)
        return drop_rows(add_columns(table, SCORED, found), "score", drops)

    def _score(self, rows: Sequence[Row], images: Sequence[Image]) -> tuple[list[list[BoxScore]], list[float | None]]:
        """Return the box scores of each row, and its image-caption similarity or None if no box is kept."""
        scores = [
            [measure_box(box, image.shape[1], image.shape[0], self.thresholds) for box in row["boxes"]]
            for row, image in zip(rows, images, strict=True)
        ]
        passed = [
            (r, b) for r, row_scores in enumerate(scores) for b, score in enumerate(row_scores) if not score["removed"]
        ]
        crops = [crop_box(images[r], corners(rows[r]["boxes"][b])) for r, b in passed]
        cosines = self._cosines(crops, [phrase_text(rows[r], rows[r]["boxes"][b]) for r, b in passed])
        for (r, b), cosine in zip(passed, cosines, strict=True):
            is_low = clip_score(cosine) < self.thresholds.min_clip_score
            scores[r][b] |= {"clip_cosine": cosine, "removed": "low_clip_score" if is_low else None}
        kept = [r for r, row_scores in enumerate(scores) if any(not score["removed"] for score in row_scores)]
        similarities = self._cosines([images[r] for r in kept], [rows[r]["caption"] for r in kept])
        similarity = dict(zip(kept, similarities, strict=True))
        return scores, [similarity.get(r) for r in range(len(rows))]

    def _cosines(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """Return the cosine of each image and its text. Texts that occur several times are embedded once."""
        if not images:
            return []
        distinct = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        text_features = self.scorer.embed_texts(list(distinct))[[distinct[text] for text in texts]]
        return (self.scorer.embed_images(images) * text_features).sum(dim=-1).tolist()


def phrase_text(row: Row, box: dict[str, Any]) -> str:
    """Return the text of the box's noun chunk."""
    chunk = row["noun_chunks"][box["phrase"]]
    return row["caption"][chunk["start"] : chunk["end"]]
