"""Stage `score`: keep boxes with sufficient size, grounding score and CLIPScore."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, starmap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from hypergrit_common.images import Image
from pipeline.images import StoredImages, corners, crop_box
from pipeline.stages.score.filters import (
    BoxScore,
    ScoreConfig,
    has_crop,
    is_below,
    measure_box,
    resolve_thresholds,
    scorer_path,
    why_dropped,
)
from pipeline.stages.stage import Context, Stage, TableFunction
from schemas.manifest import NO_MODEL
from schemas.rows import HEAVY, SCORED
from schemas.scores import CROP_SCORES, ROW_COLUMNS, SHARE, ScoreEntry
from schemas.status import REASONS
from schemas.table import Drop, add_columns, drop_rows, kept_indices

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.stages.score.scorers import Head, Scorer

COLUMNS: Final = ("caption", "noun_chunks", "boxes", "presence", "width", "height", "given_chunks")

Rows = dict[int, dict[str, Any]]
"""Position in the table -> the COLUMNS of a row that is not dropped."""


class Place(NamedTuple):
    """A row of a table, or a box in it."""

    row: int
    """Its position."""
    box: int | None = None
    """Index in `boxes` of the row."""


Scores = Callable[[ScoreEntry, Rows, Sequence[Place]], Sequence[float | None]]
"""Returns a score of each row, or of the crop of each box: computed by models, or stored in an output."""


class Score(Stage):
    """Filter boxes by size, grounding score and CLIPScore. Takes a GROUNDED table and returns a SCORED table.

    Adds `box_scores`, whose field `removed` is the reason if a box is not kept, and the scores of rows. A row without a
    kept box is dropped for the last filter that removed a box, unless `keeps_pairs`; other rows for their own scores
    (`schemas/scores.py`). Without a scorer, nothing is compared with texts.

    Args:
        config: settings.
        thresholds: settings with the thresholds, usually those of `resolve_thresholds(config, grounder)`.
        scorer: a loaded scorer; None: that of `config`, which is loaded.
        decode: decoder with a cache, such as one that `Ground` shares; None: without a cache.
        keeps_pairs: keep rows without a kept box as pairs of image and caption.
        has_grounder: a grounder looked for the phrases of rows without given boxes.

    Raises:
        UserError: the scorer or the head cannot be loaded, or they do not fit each other.

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
    ('box_too_small', 'largest area 400 px²')
    """

    name, schema, reasons = "score", SCORED, REASONS["score"]
    Config = ScoreConfig
    needs_model = True

    def __init__(
        self,
        config: ScoreConfig,
        thresholds: ScoreConfig,
        scorer: "Scorer | None" = None,
        decode: StoredImages | None = None,
        keeps_pairs: bool = False,
        has_grounder: bool = True,
        trust: Sequence[str] = (),
    ) -> None:
        """Load the scorer of `config` unless one is given."""
        super().__init__(config)
        self.has_grounder = has_grounder
        self.thresholds, self.keep_all, self.keeps_pairs = thresholds, config.keep_all, keeps_pairs
        if scorer is None and self.has_model(config):
            from pipeline.stages.score.scorers import make_scorer  # imports torch

            scorer = make_scorer(config, trust)
        self.scorer, self.head = scorer, None
        if config.head is not None:
            from pipeline.stages.score.scorers import load_head

            self.head = load_head(config.head, config.device, config.batch_size, trust)
        self.decode = decode or StoredImages(max_bytes=0)

    @classmethod
    def has_model(cls, config: ScoreConfig) -> bool:
        """Return False for a job that compares nothing with texts."""
        return config.scorer != NO_MODEL

    @classmethod
    def load(cls, context: Context) -> TableFunction:
        """Load the stage, which shares the decoded images of a shard. Raises UserError like `Context.check_model`."""
        config, ground = context.settings[cls.name], context.settings["ground"]
        if cls.has_model(config):
            context.check_model("scorer", scorer_path(config.scorer))
        thresholds = resolve_thresholds(config, ground.grounder)
        pairs = {"keeps_pairs": ground.keeps_pairs, "has_grounder": ground.grounder != NO_MODEL}
        return cls(config, thresholds, decode=context.images, **pairs, trust=context.trust)

    def __call__(self, table: pa.Table) -> pa.Table:
        scores = ModelScores(table["image"], self.scorer, self.decode, self.head)
        return score_table(table, self.thresholds, scores, self.keep_all, self.keeps_pairs, self.has_grounder)


def score_table(
    table: pa.Table, thresholds: ScoreConfig, source: Scores, keep_all: bool, keeps_pairs: bool = False,
    has_grounder: bool = True,
) -> pa.Table:  # fmt: skip
    """Apply the filters to a GROUNDED table, with scores of models or stored ones.

    Scores are taken for boxes and rows that pass the other filters; with `keep_all` for all boxes that have a crop and
    for all rows, and dropped rows keep their images.

    Args:
        table: a GROUNDED table.
        thresholds: settings with the thresholds.
        source: where the scores of crops and rows are taken from.
        keep_all: as `ScoreConfig.keep_all`.
        keeps_pairs: keep rows without a kept box.
        has_grounder: a grounder looked for the phrases of rows without given boxes.

    Returns:
        The SCORED table, with rows dropped as in `Score`.
    """
    kept = kept_indices(table)
    rows: Rows = dict(zip(kept, table.select(COLUMNS).take(pa.array(kept, pa.int64())).to_pylist(), strict=True))
    scores = score_boxes(rows, thresholds, source, keep_all)
    drops = {
        i: why_dropped(row["boxes"], scores[i], thresholds)
        for i, row in rows.items()
        if not keeps_pairs and all(score["removed"] for score in scores[i])
    }
    shares = {i: grounded_share(row, scores[i], has_grounder) for i, row in rows.items()}
    drops = below(SHARE, shares, thresholds) | drops
    compared = [i for i in rows if keep_all or i not in drops]
    found: dict[int, dict[str, Any]] = {i: {"box_scores": scores[i], **dict.fromkeys(ROW_COLUMNS)} for i in rows}
    low = dict[int, Drop]()
    for name, score in ROW_COLUMNS.items():
        values = dict(zip(compared, source(score, rows, [*map(Place, compared)]), strict=True))
        low |= below(score, values, thresholds)
        for i, value in values.items():
            found[i][name] = value
    return drop_rows(add_columns(table, SCORED, found), "score", low | drops, heavy=() if keep_all else HEAVY)


def score_boxes(rows: Rows, thresholds: ScoreConfig, source: Scores, keep_all: bool) -> dict[int, list[BoxScore]]:
    """Apply the filters to the boxes of rows."""
    scores = {i: measure_row(row, thresholds) for i, row in rows.items()}
    for score in CROP_SCORES:
        places = [(i, b) for i, row in rows.items() for b in compared_boxes(row, scores[i], keep_all)]
        for (i, b), value in zip(places, source(score, rows, [*starmap(Place, places)]), strict=True):
            scores[i][b][score.column] = value
            if scores[i][b]["removed"] is None and is_below(score, value, thresholds):
                scores[i][b]["removed"] = score.reason
    return scores


def grounded_share(row: dict[str, Any], scores: Sequence[BoxScore], has_grounder: bool) -> float | None:
    """Return the share of the phrases of a row that have a kept box; None if no box was looked for, nor given."""
    n_phrases = sum(chunk["removed"] is None for chunk in row["noun_chunks"] or ())
    if not n_phrases or not (has_grounder or row["given_chunks"]):
        return None
    kept = {box["phrase"] for box, score in zip(row["boxes"], scores, strict=True) if score["removed"] is None}
    return len(kept) / n_phrases


def below(score: ScoreEntry, values: Mapping[int, float | None], thresholds: ScoreConfig) -> dict[int, Drop]:
    """Return the drops of the rows whose value is below the threshold."""
    low = {i: value for i, value in values.items() if is_below(score, value, thresholds)}
    least = getattr(thresholds, score.setting)
    return {i: Drop(score.reason, f"{value:.3f}, threshold {least:g}") for i, value in low.items()}


def measure_row(row: dict[str, Any], thresholds: ScoreConfig) -> list[BoxScore]:
    """Measure the boxes of a row, and apply the filters that need no model."""
    presence = row["presence"] or [None] * len(row["noun_chunks"] or ())
    return [measure_box(box, row["width"], row["height"], thresholds, presence[box["phrase"]]) for box in row["boxes"]]


def compared_boxes(row: dict[str, Any], scores: Sequence[BoxScore], keep_all: bool) -> list[int]:
    """Return the boxes of a row that are compared with their phrases: those not removed, or all with a crop."""
    if keep_all:
        return [b for b, box in enumerate(row["boxes"]) if has_crop(box, row["width"], row["height"])]
    return [b for b, score in enumerate(scores) if not score["removed"]]


class ModelScores:
    """Scores of models. `images` are the stored images of the table; equal texts are embedded once."""

    def __init__(
        self, images: pa.ChunkedArray, scorer: "Scorer | None", decode: StoredImages, head: "Head | None" = None
    ) -> None:
        self._images, self._scorer, self._decode, self._head = images, scorer, decode, head
        self._places: Sequence[Place] = ()
        self._embedded: Tensor | None = None  # the images of these places, which several scores share

    def __call__(self, score: ScoreEntry, rows: Rows, places: Sequence[Place]) -> Sequence[float | None]:
        """Return the score of each row, or of the crop of each box; None without a model."""
        images = self._pixels(rows, places)
        texts = [rows[i]["caption"] if b is None else phrase_text(rows[i], rows[i]["boxes"][b]) for i, b in places]
        match score.column:
            case "clip_cosine" | "clip_similarity":
                return self._cosines(places, images, texts)
            case "head_score":
                if self._head is None or not texts:
                    return [None] * len(texts)
                return list(self._head(self._features(places, images), texts).tolist())
        raise NotImplementedError(score.column)

    def _pixels(self, rows: Rows, places: Sequence[Place]) -> Iterator[Image]:
        for i, group in groupby(places, key=lambda place: place.row):
            image = self._decode(self._images[i].as_py())
            for _, b in group:
                yield image if b is None else crop_box(image, corners(rows[i]["boxes"][b]))

    def _features(self, places: Sequence[Place], images: Iterator[Image]) -> "Tensor":
        assert self._scorer is not None
        if self._embedded is None or self._places != places:
            self._places, self._embedded = places, self._scorer.embed_images(images)
        return self._embedded

    def _cosines(self, places: Sequence[Place], images: Iterator[Image], texts: Sequence[str]) -> list[float | None]:
        if self._scorer is None or not texts:
            return [None] * len(texts)
        distinct = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        text_features = self._scorer.embed_texts(list(distinct))[[distinct[text] for text in texts]]
        return list((self._features(places, images) * text_features).sum(dim=-1).tolist())


def phrase_text(row: dict[str, Any], box: dict[str, Any]) -> str:
    """Return the text of the box's noun chunk."""
    chunk = row["noun_chunks"][box["phrase"]]
    return row["caption"][chunk["start"] : chunk["end"]]
