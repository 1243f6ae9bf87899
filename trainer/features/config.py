"""Settings of cached features. Does not import torch."""

from dataclasses import dataclass
from typing import Literal

from hypergrit_common.config import Trusting, check_range
from hypergrit_common.devices import Precision, check_device
from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations
from hypergrit_common.processes import n_cpus


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig(Trusting):
    """Features of the images, boxes, captions and phrases of training shards, from the towers of one model."""

    # training shards, in a layout that the trainer reads: a folder, a glob, or several of them, as in training
    shards: Locations = ""
    # model whose towers are frozen: the folder of a run, its folder model/, a folder of open_clip, or a
    # released .pth file
    model: str = ""
    # name of the model in a released file
    model_name: str | None = None
    # folder of the features, on this machine
    output: str = ""
    # store the features after the projections of the model, in place of those before them
    projected: bool = False
    # views of each image and box. The first is that of evaluation; the others are random crops, of which a training
    # draws one at each step
    views: int = 1
    # smallest and largest area of the random crops, as fractions of the image's area
    crop_scale: tuple[float, float] = (0.5, 1.0)
    # random seed of the crops
    seed: int = 0
    # also store the states of the tokens of captions, and their trees, for models that need the parse (syntax_meru)
    tokens: bool = False
    # place in the text tower whose states are stored, as model.word_states of syntax_meru
    word_states: Literal["tower", "block", "attention"] = "tower"
    # as model.word_block of syntax_meru
    word_block: int = 0
    # also store the states of the patches of images, and the texts of queries, for models that pool patches (hyper3). A
    # file is held in memory until it is written: give a smaller rows_per_shard, since an image may have 196 patches
    patches: bool = False
    # largest number of boxes of a sample, the first ones; null: all
    max_boxes: int | None = None
    # samples of a file, the unit of work that an interrupted command repeats
    rows_per_shard: int = 16_384
    # images or texts that a tower processes at once
    batch_size: int = 64
    # processes that read and decode images; auto: one for each CPU core but one, 1 to 8
    workers: int | Literal["auto"] = "auto"
    # number format of the towers: auto, fp32, bf16 or fp16; auto: bf16 on a GPU that computes in it, else fp32
    precision: Precision = "auto"
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = "auto"
    # largest share, 0 to 1, of bad samples, and of damaged shards; the command stops above it
    max_bad_share: float = 0.1
    # compute some samples only, and tell how many bytes and how much time all of them will take
    dry_run: bool = False

    def __post_init__(self) -> None:
        for key, what in (("shards", "the training shards"), ("model", "a trained model"), ("output", "a folder")):
            if not getattr(self, key):
                raise UserError(f"{key} is not set; give {key}=PATH of {what}")
        if "://" in self.output:
            raise UserError(f"output={self.output}: features are mapped into memory; give a folder of this machine")
        check_range(self, "views", "rows_per_shard", "batch_size", "max_boxes", least=1)
        check_range(self, "seed", "word_block", *([] if self.workers == "auto" else ["workers"]), least=0)
        check_range(self, "max_bad_share", least=0, most=1)
        if not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise UserError(f"crop_scale is {list(self.crop_scale)}; give a smallest and a largest area, 0 to 1")
        check_device(self)

    @property
    def n_workers(self) -> int:
        return min(max(n_cpus() - 1, 1), 8) if self.workers == "auto" else self.workers
