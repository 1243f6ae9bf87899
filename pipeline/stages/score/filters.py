"""Settings and filters of the score stage, and the drop reason of rows without a kept box."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, runtime_checkable

import numpy as np

from hypergrit_common.config import check_range, reaches, runtime
from hypergrit_common.devices import check_device
from hypergrit_common.errors import UserError
from hypergrit_common.images import Image
from pipeline.models import calibrated_threshold, local_model, read_model_config
from pipeline.stages.ground.load import score_threshold
from schemas.manifest import NO_MODEL, ThresholdValues
from schemas.scores import BOX_SCORES, CROP_SCORES, SCORES, THRESHOLDS, ScoreEntry
from schemas.status import BOX_REMOVALS
from schemas.table import Drop

if TYPE_CHECKING:
    from torch import Tensor

CLIP_SCORE_WEIGHT: Final = 2.5
"""Factor w of CLIPScore (Hessel et al. 2021, section 3)."""


def clip_score(cosine: float) -> float:
    """Return the CLIPScore of a cosine, the scale of `min_clip_score` (Hessel et al. 2021, section 3).

        2.5 max(cosine, 0)

    Args:
        cosine: cosine of image and text, in [-1, 1].

    Returns:
        A number in [0, 2.5].

    >>> clip_score(0.26), clip_score(-0.1)
    (0.65, 0.0)
    """
    return CLIP_SCORE_WEIGHT * max(cosine, 0.0)


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """The CLIP model that compares boxes with phrases, and the thresholds that a box must reach (`score`).

    Raises:
        UserError: a value is out of its range, `device` has another form, or a setting needs a scorer, but there is
            none.
    """

    # miniature; a folder written by the trainer; a folder or hub name of transformers; the URL of a folder;
    # open_clip:ARCHITECTURE/WEIGHTS; module:Class of your own (docs/extending.md); none: nothing is compared with texts
    scorer: str = reaches("miniature", NO_MODEL)
    """The miniature knows only the drawings of the demo; docs/models.md compares others."""
    # device of the model: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = runtime("auto")
    # minimum size of a box, in pixels of the stored image; size_rule defines what is compared with it
    min_side_px: int = 32
    """Pixels, at least 0. 32 in HyCoCLIP (appendix A)."""
    # area: the area of a box must be at least min_side_px squared; side: its width and its height must be at least
    # min_side_px; released: with corners rounded down to pixels, its area must be above min_side_px squared, as in
    # HyCoCLIP's conversion of GRIT
    size_rule: Literal["area", "side", "released"] = "area"
    """Ours; HyCoCLIP says "sizes lower than 32 x 32" (appendix A)."""
    # minimum grounding score of a kept box, 0 to 1; null: the calibrated threshold of the grounder, or 0.65 if it has
    # none
    min_score: float | None = None
    """Score in [0, 1]. 0.65 in GRIT, with GLIP (Kosmos-2, section 2.1)."""
    # minimum CLIPScore of a crop and its phrase, 2.5 * max(cosine, 0); null: the calibrated threshold of the scorer, or
    # 0.65 if it has none
    min_clip_score: float | None = None
    """CLIPScore in [0, 2.5]. 0.65 in HyCoCLIP (appendix A), which is a cosine of 0.26 with OpenAI's CLIP."""
    # minimum probability that the image shows the phrase of a box, 0 to 1, of a grounder that predicts it (SAM 3); boxes
    # of others pass; null: none
    min_presence: float | None = None
    """Probability in [0, 1]. None: the papers have no such filter."""
    # minimum cosine of image and caption, -1 to 1, that a row must reach; pages show its CLIPScore, 2.5 times as large;
    # null: none
    min_image_similarity: float | None = None
    """Cosine in [-1, 1]. None: the papers have no such filter."""
    # minimum share of the phrases of a row that have a kept box, 0 to 1: too few say that image and caption do not belong
    # together. All phrases count that were sent to the grounder, or had a box in the input; null: none
    min_grounded_share: float | None = None
    """Share in [0, 1]. None: the papers have no such filter."""
    # file of a linear head on the scorer's embedding of the whole image, such as one for aesthetics: safetensors with
    # `weight` [d], and `bias` [1] if it has one; or the folder of a hyperbolic model of the trainer: the score is the
    # distance of the caption to the root, where general captions are nearer (docs/models.md); null: none
    head: str | None = reaches(None)
    # minimum score of the head that a row must reach; null: none. For a linear head whose large values are unwanted,
    # negate weight and bias
    min_head_score: float | None = None
    """On the scale of the head."""
    # compute all scores of all boxes, and keep the images of rows that are dropped here in arrow/, so that
    # `hypergrit rewrite` can also lower the thresholds
    keep_all: bool = False
    """False: a box is measured only until a filter removes it."""

    batch_size: ClassVar[int] = 64
    """Images or texts in a batch; incomplete batches are filled up. It decides the last digits of the cosines."""

    def __post_init__(self) -> None:
        check_range(self, "min_side_px", least=0)
        for score in SCORES:
            if score.range:
                check_range(self, score.setting, least=score.range[0], most=score.range[1])
        if self.scorer == NO_MODEL and self.min_image_similarity is not None:
            raise UserError("min_image_similarity needs a scorer; give one, or leave out the threshold")
        if self.scorer == NO_MODEL and self.head is not None:
            raise UserError("head needs the embeddings of a scorer; give one, or leave out the head")
        check_device(self)

    @property
    def recorded(self) -> ThresholdValues:
        """The thresholds that are set, as manifests record them; `ScoreConfig(**recorded)` has the same ones."""
        return {name: value for name in THRESHOLDS if (value := getattr(self, name)) is not None}


@runtime_checkable
class Encoder(Protocol):
    """The towers of a scorer. One of the user takes a ScoreConfig.

    Both are called with exactly `batch_size` items, the last ones repeated where there are fewer, without
    gradients. Vectors may have any length and device; the scorer normalises them. An exception drops the rows that
    cause it as `internal_error`; a UserError ends the job.
    """

    def encode_images(self, batch: Sequence[Image]) -> "Tensor":
        """Embed images.

        Args:
            batch: uint8 RGB [h w 3], each of another size: crops of at least 1 x 1 px, and whole images.

        Returns:
            Vectors [n d].
        """
        ...

    def encode_texts(self, batch: Sequence[str]) -> "Tensor":
        """Embed phrases and captions.

        Args:
            batch: texts, of at least one character.

        Returns:
            Vectors [n d], with the d of those of images.
        """
        ...


# The weights and the calibrated threshold of the scorer that `score.scorer` names; no model is loaded.

OPEN_CLIP: Final = "open_clip:"
"""Prefix of the scorers of open_clip."""
MINIATURE: Final = Path(__file__).parents[3] / "demo" / "weights" / "clip"
CLIP_SCORE_THRESHOLD: Final = 0.65
"""CLIPScore threshold of a scorer without calibration: a cosine of 0.26, as in HyCoCLIP (appendix A)."""


scorer_path: Final = partial(local_model, miniature=MINIATURE)
"""Path of the weights of `ScoreConfig.scorer` on this machine."""


def clip_score_threshold(scorer: str) -> float:
    """Return the calibrated CLIPScore threshold of a scorer, or CLIP_SCORE_THRESHOLD if it has none.

    Raises UserError if the threshold in its config.json is not a number from 0 to 2.5.
    """
    config, keys = read_model_config(Path(scorer_path(scorer))), [("thresholds", "clip_score")]
    return calibrated_threshold(
        config, keys, otherwise=CLIP_SCORE_THRESHOLD, most=CLIP_SCORE_WEIGHT, model=f"scorer {scorer!r}"
    )


# Thresholds that a box must reach to be kept.


def resolve_thresholds(config: ScoreConfig, grounder: str) -> ScoreConfig:
    """Return `config` with the calibrated thresholds of the grounder and the scorer in place of null.

    Args:
        config: settings.
        grounder: the setting `ground.grounder`, whose config.json is read if `min_score` is None.

    Returns:
        The settings, whose thresholds `Score` and `rewrite` apply.

    Raises:
        UserError: a calibrated threshold is not a valid number, or the config.json of a model cannot be read or
            fetched.

    >>> from pipeline import ScoreConfig, resolve_thresholds
    >>> thresholds = resolve_thresholds(ScoreConfig(min_score=0.7), grounder="miniature")
    >>> thresholds.min_score, thresholds.min_side_px
    (0.7, 32)
    """
    if config.min_score is None:
        config = replace(config, min_score=score_threshold(grounder))
    if config.min_clip_score is None:
        config = replace(config, min_clip_score=clip_score_threshold(config.scorer))
    return config


def is_below(score: ScoreEntry, value: float | None, thresholds: ScoreConfig) -> bool:
    """Return True for a value, in the unit of its column, below the threshold; False without either."""
    least = getattr(thresholds, score.setting)
    if value is None or least is None:
        return False
    if score.unit == "CLIPScore":
        return clip_score(value) < least
    return bool(np.float32(value) < np.float32(least))  # scores are stored as float32


BoxScore = dict[str, Any]
"""The measurements of a box (schemas.rows.BOX_SCORE)."""


def measure_box(
    box: dict[str, Any], width: int, height: int, thresholds: ScoreConfig, presence: float | None = None
) -> BoxScore:
    """Measure a box, and apply the filters that need no pixels. The scores of its crop are computed later.

    `width` and `height` are those of the image, in pixels; `presence` is that of the phrase, None if it is not known.
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
    values = {"presence": presence, **box}
    low = (score.reason for score in BOX_SCORES if is_below(score, values.get(score.column), thresholds))
    removed = "box_too_small" if is_small or not has_crop(box, width, height) else next(low, None)
    return {"area_px": box_width * box_height, **{score.column: None for score in CROP_SCORES}, "removed": removed}


def has_crop(box: dict[str, Any], width: int, height: int) -> bool:
    """Return True if the crop of a box has pixels: its corners are truncated to whole pixels."""
    return all(int(box[f"{axis}_max"] * n) > int(box[f"{axis}_min"] * n) for axis, n in (("x", width), ("y", height)))


def why_dropped(boxes: Sequence[dict[str, Any]], scores: Sequence[BoxScore], thresholds: ScoreConfig) -> Drop:
    """Return the drop reason of a row without a kept box: the last filter that removed a box, and the best value."""
    removed = {score["removed"] for score in scores}
    reason = [name for name in BOX_REMOVALS if name in removed][-1]
    score = next((score for score in BOX_SCORES if score.reason == reason), None)
    if score is None:
        return Drop(reason, f"largest area {max(found['area_px'] for found in scores):.0f} px²")
    least = f"threshold {getattr(thresholds, score.setting):.2f}"
    if score.of == "phrase":
        return Drop(reason, least)
    pairs = zip(boxes, scores, strict=True)
    best = max({**box, **found}[score.column] for box, found in pairs if found["removed"] == reason)
    return Drop(reason, f"best {clip_score(best) if score.unit == 'CLIPScore' else best:.2f}, {least}")
