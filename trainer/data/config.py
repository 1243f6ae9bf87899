"""Settings of the training data."""

import os
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from hypergrit_common.config import check_positive, check_range, reaches, runtime
from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations, split_locations
from hypergrit_common.processes import n_cpus

SYNTHETIC: Final = "synthetic"
"""Value of `shards` for drawn samples (trainer.data.synthetic)."""
Boxes = Literal["random", "all"]


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Random changes of each crop, of full images and boxes independently. All are off by default, as in the papers."""

    # probability, 0 to 1, of mirroring a crop; captions with "left" and "right" become wrong
    flip: float = 0.0
    # probability, 0 to 1, of the changes of colours below, in random order
    jitter: float = 0.0
    # largest change of the brightness, 0 to 1: its factor is drawn from 1 - brightness to 1 + brightness
    brightness: float = 0.4
    # largest change of the contrast, 0 to 1
    contrast: float = 0.4
    # largest change of the saturation, 0 to 1
    saturation: float = 0.4
    # largest shift of the hue, 0 to 0.5, as a share of the colour circle
    hue: float = 0.1
    # probability, 0 to 1, of converting a crop to greyscale
    greyscale: float = 0.0

    def __post_init__(self) -> None:
        check_range(self, "flip", "jitter", "greyscale", "brightness", "contrast", "saturation", least=0, most=1)
        check_range(self, "hue", least=0, most=0.5)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Shards, order and crops. As in MERU and HyCoCLIP, full images and boxes are cropped independently."""

    # training shards: a folder, a glob of tars, or several of them, separated by commas or `::`, or as a list, [A,B]; each
    # a path or an fsspec URL; synthetic (also as data=synthetic): drawn samples, written to OUTPUT/synthetic, for speed tests
    shards: Locations = reaches("", SYNTHETIC, is_runtime=True)
    # features that `hypergrit features` wrote, in place of shards: a folder, or several, as in shards; a head over the
    # frozen towers that made them is trained
    features: Locations = reaches("", is_runtime=True)
    # with features, what the texts are. features: those of the frozen text tower; tokens: captions and phrases, for the
    # text tower of model.text, which is trained
    texts: Literal["features", "tokens"] = "features"
    # how shards are read. index: at the places that an index gives, so that a run resumes exactly; webdataset: once from
    # beginning to end, also from pipe:COMMAND and web servers that send no parts of files; a run resumes in another order
    reader: Literal["index", "webdataset"] = "index"
    # weights of the sets in shards, in their order: the shares of the samples that are drawn from each,
    # as [3, 1] for three quarters from the first; []: every sample is drawn as often as any other
    weights: tuple[float, ...] = ()
    # layout of the tars. train: samples of this pipeline; hycoclip: the same without JSON; grit: raw GRIT; pairs: a
    # jpg with a txt, or with a JSON that holds a caption; auto: detected in each sample
    layout: Literal["auto", "train", "hycoclip", "grit", "pairs"] = "auto"
    # boxes per sample for models that use boxes. random: one, drawn again in each epoch; all: every box
    boxes: Boxes = "random"
    # with boxes=all, the largest number of boxes per sample; null: no limit
    max_boxes: int | None = None
    # boxes of a sample with more than max_boxes. first: those that come first in the shard; random: drawn again in each
    # epoch, in the order of the shard
    box_order: Literal["first", "random"] = "first"
    # random seed of the sample order, and of the choice of boxes and crops
    seed: int = 0
    # number of loader processes per training process; 0: the training process builds its batches itself; auto: one for
    # each of its CPU cores but one, 1 to 8
    workers: int | Literal["auto"] = runtime("auto")
    # number of batches that each loader process prepares in advance
    prefetch: int = runtime(2)
    # texts are padded to a multiple of so many tokens, so that their lengths take few values; null: 16 on a GPU, else 1
    text_multiple: int | None = runtime(None)
    # compute captions and phrases without padding, as one sequence (varlen attention): the papers' text transformer, on a
    # GPU in bf16 or fp16
    pack_texts: bool = runtime(False)
    # smallest and largest area of a random crop, as fractions of the image's area
    crop_scale: tuple[float, float] = (0.5, 1.0)
    # smallest and largest width of a random crop, as multiples of its height
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    # probability, 0 to 1, of putting a sample's subreddit in front of its caption, if it has one (RedCaps)
    subreddit_probability: float = 0.5
    # caption of a sample with several (read.captions=all of the pipeline). first: its caption; random: drawn each time
    # the sample is read, by caption_weights, with its own parse. A model with boxes always gets the first, whose they are
    captions: Literal["first", "random"] = "first"
    # with captions=random, weights of the kinds of captions, such as {title: 1, recaption: 3}: the chance of a caption is its
    # weight over the sum of those of its sample; kinds without a weight have 1, and 0 is never drawn unless all are 0
    caption_weights: dict[str, float] = field(default_factory=dict)
    # folder for the cached index of shards without one of their own (those of this pipeline have one);
    # empty: hypergrit/index in the user's cache folder ($XDG_CACHE_HOME or ~/.cache)
    index_folder: str = runtime("")
    # largest share, 0 to 1, of bad samples among those read, and of damaged shards; the run stops above it
    max_bad_share: float = runtime(0.1)

    max_queries: ClassVar[int] = 5
    """Queries of a sample, for models that pool patches by them (hyper3): sentences of the caption, phrases of its boxes, and
    parts of the caption, in this order. Hyper3-CLIP's 6 include the caption."""

    @property
    def n_workers(self) -> int:
        """The number of loader processes. The training processes that torchrun starts on a machine share its cores.

        Copying cached features takes less time than sending them to another process.
        """
        if self.features:
            return 0
        cores = n_cpus() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return min(max(cores - 1, 1), 8) if self.workers == "auto" else self.workers

    def __post_init__(self) -> None:
        check_range(self, "seed", *([] if self.workers == "auto" else ["workers"]), least=0)
        check_range(self, "prefetch", "text_multiple", least=1)
        check_positive(self, "weights")
        if self.reader == "webdataset" and (self.weights or self.features):
            name = "weights" if self.weights else "features"
            raise UserError(f"{name} cannot be used with reader=webdataset, which reads a stream; set reader=index")
        if self.shards and self.features:
            raise UserError("shards and features are both set; train on one of them")
        for name in ("shards", "features"):
            sets = getattr(self, name)
            if self.weights and sets and len(self.weights) != (n := len(split_locations(sets))):
                raise UserError(
                    f"weights are {len(self.weights)} numbers for the {n} sets in {name}; give one for each"
                )
        if wrong := {kind: n for kind, n in self.caption_weights.items() if not 0 <= n < float("inf")}:
            raise UserError(f"caption_weights are {wrong}; give finite numbers of at least 0")
        if self.max_boxes is not None:
            check_range(self, "max_boxes", least=1)
        check_range(self, "subreddit_probability", "max_bad_share", least=0, most=1)
        for name, most in (("crop_scale", 1.0), ("crop_ratio", float("inf"))):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most:
                limit = "" if most == float("inf") else f" and at most {most}"
                raise UserError(f"{name} is {low}, {high}; give a smallest and a largest value, above 0{limit}")
