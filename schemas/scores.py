"""The scores of boxes and rows: columns, thresholds, drop reasons, histograms and sliders follow from this list.

The threshold is also a field of `ScoreConfig` (pipeline/stages/score/filters.py), and `ModelScores` computes what no
earlier stage has found (pipeline/stages/score/stage.py). docs/extending.md adds a score.
"""

from dataclasses import dataclass
from typing import Final, Literal

CLIP_AXIS: Final = "CLIPScore (2.5 × cosine)"


@dataclass(frozen=True, kw_only=True)
class ScoreEntry:
    """A number of each box or row. What is below the threshold is dropped; what has no number stays."""

    setting: str  # name of the threshold: `score.NAME`
    of: Literal["box", "phrase", "crop", "row"]  # box, phrase: found by the stage `ground`; crop: the pixels of a box
    column: str = (
        ""  # in arrow/: field of `boxes`, list by phrase, field of `box_scores`, or column; "": the grounded share
    )
    doc: str = ""  # description of the column, of crops and rows
    # Unit of the threshold. A column has cosines in place of CLIPScores, and a chart CLIPScores in place of cosines.
    unit: Literal["number", "cosine", "CLIPScore"] = "number"
    range: tuple[float, float] | None = None  # of the threshold; None: any number
    threshold: str  # description of the threshold, in manifests
    is_calibrated: bool = False  # the threshold is always set, since models have one; the others are null by default
    reason: str  # why a box is removed, or a row dropped
    removed: str = ""  # meaning of the reason for a box
    dropped: str  # meaning of the reason for a row
    hint: str = ""  # what the report says about the reason
    label: str = ""  # of the slider in the explorer; "": none
    histogram: str = ""  # name of the histogram in stats.json; only that of a phrase has none
    edges: tuple[float, float, int] = (0, 1, 51)  # first and last edge of the bins, and number of the edges
    title: str = ""  # of the chart in the report; "": the label
    axis: str = "score"
    note: str = ""  # the sentence below it


SCORES: Final = (
    ScoreEntry(
        setting="min_score", of="box", column="score", range=(0, 1), is_calibrated=True, label="Grounding score",
        threshold="lowest grounding score", reason="low_score", removed="grounding score below the threshold",
        dropped="the last remaining boxes had a grounding score below the threshold",
        hint="The scores are stored in arrow/, so another threshold needs no GPU.",
        histogram="grounding_score", note="Confidence of the grounder in each box",
    ),
    ScoreEntry(
        setting="min_clip_score", of="crop", column="clip_cosine", unit="CLIPScore", range=(0, 2.5), label="CLIPScore",
        doc="cosine of crop and phrase in [-1, 1]; null if an earlier filter removed the box, unless `score.keep_all`",
        is_calibrated=True, threshold="lowest CLIPScore", reason="low_clip_score",
        removed="CLIP score of crop and phrase below the threshold",
        dropped="the last remaining boxes had a CLIP score below the threshold",
        hint="The cosines are stored in arrow/, so another threshold needs no GPU.",
        histogram="clip_cosine", edges=(-1, 1, 101), title="CLIPScore of box and phrase", axis=CLIP_AXIS,
        note="Boxes that passed the filters by size and grounding score",
    ),
    ScoreEntry(
        setting="min_presence", of="phrase", column="presence", range=(0, 1), threshold="lowest presence of a phrase",
        reason="low_presence", removed="presence of the phrase in the image (SAM 3) below the threshold",
        dropped="the last remaining boxes had phrases that are probably not in the image",
        hint="The presence is stored in arrow/.", label="Presence of the phrase",
    ),
    ScoreEntry(
        setting="min_image_similarity", of="row", column="clip_similarity", unit="cosine", range=(-1, 1),
        doc="cosine of the full image and the full caption in [-1, 1]", threshold="lowest cosine of image and caption",
        reason="low_image_similarity", dropped="the cosine of image and caption is below `score.min_image_similarity`",
        label="Cosine of image and caption (CLIPScore / 2.5)", histogram="clip_similarity", edges=(-1, 1, 101),
        title="CLIPScore of image and caption", axis=CLIP_AXIS, note="Full image and full caption of each kept row",
    ),
    ScoreEntry(  # or the distance of the caption to the root; `doc` is in all files, whose bytes stay
        setting="min_head_score", of="row", column="head_score", threshold="lowest score of the head",
        doc="score of the linear head `score.head` on the embedding of the image", label="Score of the head",
        reason="low_head_score", dropped="the score of `score.head` is below `score.min_head_score`",
        histogram="head_score", edges=(-20, 20, 801), note="Head on the image or caption of each compared row",
    ),
    ScoreEntry(
        setting="min_grounded_share", of="row", range=(0, 1), label="Share of grounded phrases",
        threshold="smallest share of the phrases of a row that have a kept box", reason="low_grounded_share",
        dropped="the share of the phrases with a kept box is below `score.min_grounded_share`",
        hint="The boxes are stored in arrow/.", histogram="grounded_share", title="Grounded phrases",
        axis="share of the phrases", note="Phrases with a kept box, of each row whose boxes were filtered",
    ),
)  # fmt: skip
"""A row is dropped for its boxes, else for the share of its phrases, else for the last score here that is too low."""
CROP_SCORES: Final = tuple(score for score in SCORES if score.of == "crop")
BOX_SCORES: Final = (*(score for score in SCORES if score.of in ("box", "phrase")), *CROP_SCORES)
"""In the order of the filters: those of crops are last, since they need pixels."""
ROW_COLUMNS: Final = {score.column: score for score in SCORES if score.of == "row" and score.column}
SHARE: Final = next(score for score in SCORES if not score.column)
"""The grounded share: the only score that depends on the kept boxes. It is computed after their filters, not stored."""
THRESHOLDS: Final = {
    "min_side_px": "smallest allowed box, in pixels of the stored image",
    "size_rule": "measure that min_side_px applies to",
    **{s.setting: s.threshold if s.is_calibrated else f"{s.threshold}; absent without one" for s in SCORES},
}
"""Threshold -> its meaning, as manifests record it."""
