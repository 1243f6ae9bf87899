"""Settings of the training data."""

from dataclasses import dataclass
from typing import Literal

from common.config import check_range, runtime
from common.errors import UserError

Layout = Literal["train", "hycoclip", "grit", "pairs"]
Boxes = Literal["random", "all"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Shards, order and crops. As in MERU and HyCoCLIP, full images and boxes are cropped independently."""

    # training shards: a folder, a glob of tars, or several of them separated by commas; each a path or an fsspec URL
    shards: str = runtime("")
    # layout of the tars. train: samples of this pipeline; hycoclip: the same without JSON; grit: raw GRIT; pairs: a
    # jpg with a txt, or with a JSON that holds a caption; auto: detected from the first usable sample
    layout: Literal["auto", "train", "hycoclip", "grit", "pairs"] = "auto"
    # boxes per sample for models that use boxes. random: one, drawn again in each epoch; all: every box
    boxes: Boxes = "random"
    # random seed of the sample order, and of the choice of boxes and crops
    seed: int = 0
    # largest distance, in samples, by which shuffling moves a sample within an epoch; 0: samples keep the order of
    # their shard. The shards of an epoch are in random order in any case
    shuffle_buffer: int = 4000
    # number of loader processes per training process; 0: the training process builds its batches itself
    workers: int = runtime(2)
    # number of batches that each loader process prepares in advance
    prefetch: int = runtime(2)
    # smallest and largest area of a random crop, as fractions of the image's area
    crop_scale: tuple[float, float] = (0.5, 1.0)
    # smallest and largest width of a random crop, as multiples of its height
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    # probability, 0 to 1, of putting a sample's subreddit in front of its caption, if it has one (RedCaps)
    subreddit_probability: float = 0.5
    # folder in which the index of the shards is cached for later runs; empty: build the index at each start
    index_folder: str = runtime("")

    def __post_init__(self) -> None:
        check_range(self, "seed", "shuffle_buffer", "workers", least=0)
        check_range(self, "prefetch", least=1)
        check_range(self, "subreddit_probability", least=0, most=1)
        for name, most in (("crop_scale", 1.0), ("crop_ratio", float("inf"))):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most:
                limit = "" if most == float("inf") else f" and at most {most}"
                raise UserError(f"{name} is {low}, {high}; give a smallest and a largest value, above 0{limit}")
