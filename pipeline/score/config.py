"""Settings of the score stage."""

from dataclasses import dataclass
from typing import Final, Literal

from common.config import check_range, runtime
from common.devices import check_device

CLIP_SCORE_WEIGHT: Final = 2.5
"""Factor w of CLIPScore (Hessel et al. 2021, section 3)."""


def clip_score(cosine: float) -> float:
    """Return the CLIPScore of a cosine, the scale of `min_clip_score`.

    >>> clip_score(0.26), clip_score(-0.1)
    (0.65, 0.0)
    """
    return CLIP_SCORE_WEIGHT * max(cosine, 0.0)


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """The CLIP model that compares boxes with phrases, and the thresholds that a box must reach."""

    # miniature; a folder written by the trainer; a folder or hub name of transformers; the URL of a folder;
    # open_clip:ARCHITECTURE/WEIGHTS
    scorer: str = "miniature"
    # device of the model: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = runtime("auto")
    # number of images or texts in a batch; incomplete batches are filled up. It decides the last digits of the cosines
    batch_size: int = 64
    # minimum size of a box, in pixels of the stored image; size_rule defines what is compared with it
    min_side_px: int = 32
    # area: the area of a box must be at least min_side_px squared; side: its width and its height must be at least
    # min_side_px; released: with corners rounded down to pixels, its area must be above min_side_px squared, as in
    # HyCoCLIP's conversion of GRIT
    size_rule: Literal["area", "side", "released"] = "area"
    # minimum grounding score of a kept box, 0 to 1; null: the calibrated threshold of the grounder, or 0.65 if it has
    # none
    min_score: float | None = None
    # minimum CLIPScore of a crop and its phrase, 2.5 * max(cosine, 0); null: the calibrated threshold of the scorer, or
    # 0.65 if it has none
    min_clip_score: float | None = None
    # compute all scores of all boxes, and keep the images of rows that are dropped here in arrow/, so that
    # pipeline.refilter can also lower the thresholds
    keep_all: bool = False

    def __post_init__(self) -> None:
        check_range(self, "batch_size", least=1)
        check_range(self, "min_side_px", least=0)
        check_range(self, "min_score", least=0, most=1)
        check_range(self, "min_clip_score", least=0, most=CLIP_SCORE_WEIGHT)
        check_device(self)
