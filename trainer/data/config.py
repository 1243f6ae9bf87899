"""Settings of the training data."""

from dataclasses import dataclass
from typing import Literal

from common.errors import UserError
from common.load import check_range

Layout = Literal["train", "hycoclip", "grit", "pairs"]
Boxes = Literal["random", "all"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which shards, in which order, cut how. Crops as MERU and HyCoCLIP train: each whole and each box on its own."""

    # training shards: a folder, a glob of tars, or several with commas between; each a path or any fsspec URL
    shards: str = ""
    # what the tars hold. train: samples of this pipeline; hycoclip: the same without JSON; grit: raw GRIT; pairs: a jpg
    # with a txt or with a JSON's caption; auto: what the first sample looks like.
    layout: Literal["auto", "train", "hycoclip", "grit", "pairs"] = "auto"
    # how many boxes of a sample a model that uses boxes sees: random, one, drawn anew at each visit; or all
    boxes: Boxes = "random"
    seed: int = 0  # random seed of the samples' order, and of the boxes and crops that are drawn
    # most places by which shuffling moves a sample away from where its shard has it; 0: the order of the shard
    shuffle_buffer: int = 4000
    # processes that make batches, for each training process; 0: the training process makes them itself
    workers: int = 2
    prefetch: int = 2  # batches that each of the processes in data.workers holds ready or is making
    crop_scale: tuple[float, float] = (0.5, 1.0)  # least and most area of a random crop, as shares of the image's area
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)  # least and most width of a random crop, as multiples of its height
    # probability, 0 to 1, that a sample's subreddit is named before its caption, where it has one (RedCaps)
    subreddit_probability: float = 0.5
    # folder in which the list of what each shard holds is kept for the next start; empty: made anew at each start
    index_folder: str = ""

    def __post_init__(self) -> None:
        check_range(self, "seed", "shuffle_buffer", "workers", least=0)
        check_range(self, "prefetch", least=1)
        check_range(self, "subreddit_probability", least=0, most=1)
        for name, most in (("crop_scale", 1.0), ("crop_ratio", float("inf"))):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most:
                raise UserError(f"{name} is {low}, {high}; give the least and the most, above 0 and at most {most}")
