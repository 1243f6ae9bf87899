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

    shards: str = ""  # a folder, a glob of tars, several with commas between; each a path or any fsspec URL
    # train: this pipeline's; hycoclip: the same without JSON; grit: raw GRIT; pairs: jpg with txt or a JSON's caption
    layout: Literal["auto", "train", "hycoclip", "grit", "pairs"] = "auto"  # auto: what the first sample looks like
    boxes: Boxes = "random"  # of a sample, if the model uses boxes: one, drawn anew at each visit, or all
    seed: int = 0  # of the order and of everything that is drawn
    shuffle_buffer: int = 4000  # a sample moves at most so many places from where its shard has it; 0: none does
    workers: int = 2  # processes of each rank that make batches; 0: the training process makes them
    prefetch: int = 2  # batches that each worker has ready or in the making
    crop_scale: tuple[float, float] = (0.5, 1.0)  # of the area
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)  # width over height
    subreddit_probability: float = 0.5  # of naming it before the caption, where a sample has one (RedCaps)
    index_folder: str = ""  # where what is in each shard is kept for the next start; empty: found anew at each start

    def __post_init__(self) -> None:
        check_range(self, "seed", "shuffle_buffer", "workers", least=0)
        check_range(self, "prefetch", least=1)
        check_range(self, "subreddit_probability", least=0, most=1)
        for name, most in (("crop_scale", 1.0), ("crop_ratio", float("inf"))):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most:
                raise UserError(f"{name} is {low}, {high}; give the least and the most, above 0 and at most {most}")
