"""Stage `score`: keep boxes with sufficient size, grounding score and CLIPScore."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from common.images import Image
from pipeline.images import corners, crop_box
from pipeline.score.config import ScoreConfig
from pipeline.score.filters import BoxScore, add_cosine, has_crop, measure_box, why_dropped
from pipeline.score.scorers import Scorer, load_scorer
from pipeline.score.thresholds import Thresholds
from pipeline.stored_images import StoredImages
from schemas.rows import HEAVY, SCORED
from schemas.table import add_columns, drop_rows, kept_indices

COLUMNS: Final = ("caption", "noun_chunks", "boxes", "width", "height")

Rows = dict[int, dict[str, Any]]
"""Position in the table -> the COLUMNS of a row that is not dropped."""


class Place(NamedTuple):
    """A box: position of its row in the table, and index in its `boxes`."""

    row: int
    box: int


class Cosines(Protocol):
    """The similarities of images and texts: computed by a model, or stored in an output."""

    def of_boxes(self, rows: Rows, places: Sequence[Place]) -> list[float]:
        """Return the cosine of crop and phrase for each box."""
        ...

    def of_rows(self, rows: Rows, indices: Sequence[int]) -> list[float]:
        """Return the cosine of image and caption for each row."""
        ...


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
    >>> row |= {"image": encode_jpeg(np.full((100, 100, 3), 255, np.uint8)), "width": 100, "height": 100}
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
        self.thresholds, self.keep_all = thresholds, config.keep_all
        self.scorer = scorer or load_scorer(config.scorer, config.device, config.batch_size)
        self.decode = decode or StoredImages(max_bytes=0)

    def __call__(self, table: pa.Table) -> pa.Table:
        return score_table(
            table, self.thresholds, ModelCosines(table["image"], self.scorer, self.decode), self.keep_all
        )


def score_table(table: pa.Table, thresholds: Thresholds, cosines: Cosines, keep_all: bool) -> pa.Table:
    """Apply the filters to a GROUNDED table; return a SCORED table.

    Cosines are taken for boxes that pass the other filters, and for rows with a kept box; with `keep_all` for all that
    have a crop, and dropped rows keep their images.
    """
    kept = kept_indices(table)
    rows: Rows = dict(zip(kept, table.select(COLUMNS).take(pa.array(kept, pa.int64())).to_pylist(), strict=True))
    scores = {i: measure_row(row, thresholds) for i, row in rows.items()}
    places = [Place(i, b) for i, row in rows.items() for b in compared_boxes(row, scores[i], keep_all)]
    for (i, b), cosine in zip(places, cosines.of_boxes(rows, places), strict=True):
        scores[i][b] = add_cosine(scores[i][b], cosine, thresholds)
    drops = {
        i: why_dropped(row["boxes"], scores[i], thresholds)
        for i, row in rows.items()
        if all(score["removed"] for score in scores[i])
    }
    compared = [i for i in rows if keep_all or i not in drops]
    similarity = dict(zip(compared, cosines.of_rows(rows, compared), strict=True))
    found = {i: {"box_scores": scores[i], "clip_similarity": similarity.get(i)} for i in rows}
    return drop_rows(add_columns(table, SCORED, found), "score", drops, heavy=() if keep_all else HEAVY)


def measure_row(row: dict[str, Any], thresholds: Thresholds) -> list[BoxScore]:
    """Measure the boxes of a row, and apply the filters that need no model."""
    return [measure_box(box, row["width"], row["height"], thresholds) for box in row["boxes"]]


def compared_boxes(row: dict[str, Any], scores: Sequence[BoxScore], keep_all: bool) -> list[int]:
    """Return the boxes of a row that are compared with their phrases: those not removed, or all with a crop."""
    if keep_all:
        return [b for b, box in enumerate(row["boxes"]) if has_crop(box, row["width"], row["height"])]
    return [b for b, score in enumerate(scores) if not score["removed"]]


class ModelCosines:
    """Cosines of a CLIP model. `images` are the stored images of the table; equal texts are embedded once."""

    def __init__(self, images: pa.ChunkedArray, scorer: Scorer, decode: StoredImages) -> None:
        self._images, self._scorer, self._decode = images, scorer, decode

    def of_boxes(self, rows: Rows, places: Sequence[Place]) -> list[float]:
        """Return the cosine of crop and phrase for each box."""

        def crops() -> Iterator[Image]:
            for i, group in groupby(places, key=lambda place: place.row):
                image = self._decoded(i)
                for _, b in group:
                    yield crop_box(image, corners(rows[i]["boxes"][b]))

        return self._cosines(crops(), [phrase_text(rows[i], rows[i]["boxes"][b]) for i, b in places])

    def of_rows(self, rows: Rows, indices: Sequence[int]) -> list[float]:
        """Return the cosine of image and caption for each row."""
        return self._cosines(map(self._decoded, indices), [rows[i]["caption"] for i in indices])

    def _decoded(self, i: int) -> Image:
        return self._decode(self._images[i].as_py())

    def _cosines(self, images: Iterator[Image], texts: Sequence[str]) -> list[float]:
        if not texts:
            return []
        distinct = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        text_features = self._scorer.embed_texts(list(distinct))[[distinct[text] for text in texts]]
        return (self._scorer.embed_images(images) * text_features).sum(dim=-1).tolist()


def phrase_text(row: dict[str, Any], box: dict[str, Any]) -> str:
    """Return the text of the box's noun chunk."""
    chunk = row["noun_chunks"][box["phrase"]]
    return row["caption"][chunk["start"] : chunk["end"]]
