"""The interface of an evaluation task: the files that it reads, the embeddings that it asks for, and its result.

A task is a function `evaluate(embedder, root, options)` that `trainer.evaluation.catalog` lists.

A task with several data sets evaluates those that it finds. It lists the others by name in `details["missing"]`, with
the expected layout, or in `details["malformed"]`, with the error. If none can be evaluated, it raises UserError if one
is malformed, else MissingFilesError. A dictionary in `details` with the key "image", the path of an image file, is drawn
as a picture with the other entries as its caption.

Shapes: n items, d embedding width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.models.config import Ranking

if TYPE_CHECKING:  # `--help` lists the options without importing torch
    from torch import Tensor

    from trainer.evaluation.metrics.items import Items
    from trainer.models.dual_encoder import DualEncoder
    from trainer.text.base import TextTokenizer

Fit = Literal["crop", "squeeze", "pad"]
"""How an image becomes a square: the short side is resized and the center cropped; both sides are resized; the long
side is resized and the rest filled with white."""


class ImageStack(Protocol):
    """Images in one file, such as a memory map of CIFAR-10."""

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        """Return image `index`, RGB [h w 3]."""
        ...


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """An image file, or a box in it: left, top, width and height in pixels, clipped to the image.

    For a file that holds many images, `stack` reads them and `index` is the number of this one.
    """

    path: Path
    box: tuple[float, float, float, float] | None = None
    index: int | None = None
    stack: ImageStack | None = field(default=None, compare=False, repr=False)
    urls: tuple[str, ...] = field(default=(), compare=False)
    """Addresses that the benchmark states for the image; they are compared with those of the training shards."""


@dataclass(frozen=True, kw_only=True)
class ImageFeatures:
    """Features [n d] before the lift, and the error of each image that could not be read, by index (zeros there)."""

    features: "Tensor"
    errors: Mapping[int, str]


class Embedder(Protocol):
    """A model that embeds texts and images in batches; embeddings are cached on disk under the hash of the model."""

    model: "DualEncoder"
    tokenizer: "TextTokenizer"
    """For tasks that embed words in their context."""

    def texts(self, texts: Sequence[str]) -> "Tensor":
        """Return the features [n d] of texts before the lift, float32 on the CPU. Equal texts are embedded once."""
        ...

    def images(
        self, images: Sequence[ImageSource], fit: Fit = "crop", *, legacy_norm: bool = False, trunk: bool = False
    ) -> ImageFeatures:
        """Return the features of images, float32 on the CPU.

        `legacy_norm` subtracts a mean of 0.5 and divides by 0.5 before the encoder's own normalization, as PHyCLIP's
        code for VL-CheckList does. `trunk` returns the output of the image tower before its projection.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Rules where paper and released code differ, and limits."""

    # score by which candidates are ranked: `released` or `metric`, see trainer.models.config.Ranking
    ranking: Ranking = "released"
    # scoring rule of metrics: that of the released code, or that of the paper's text
    rule: Literal["released", "paper"] = "released"
    # PHyCLIP's double normalization of VL-CheckList's images
    vlc_legacy_norm: bool = False
    # crops of the detection task: sides of the crop relative to those of the box, such as 1.5; it is cut at the image
    box_context: float = 1.0
    # maximum number of examples of each file or split; 0: all
    max_examples: int = 0
    # seed of mismatched pairs and random subsets
    seed: int = 0
    # points of a traversal: MERU's 50, or 100 as in HyCoCLIP
    traversal_steps: int = 50
    # file with the root of CLIP, written by `python -m trainer.analyses.root`; empty: the mean direction of the points
    # at hand
    root: str = ""


class Figure:
    """A picture of a result. `draw` writes a PNG file: a function of trainer.evaluation.plots with all but the path."""

    def __init__(self, name: str, title: str, draw: Callable[..., None], *arguments: Any, **options: Any) -> None:
        self.name, self.title, self.draw = name, title, partial(draw, *arguments, **options)


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of a task: metrics by name, as printed in the papers' tables, and what they were computed from."""

    metrics: Mapping[str, float]
    """Shares are between 0 and 1; other units are in the name of the metric."""
    chance: Mapping[str, float] = field(default_factory=dict)
    rules: Mapping[str, str] = field(default_factory=dict)
    n_used: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Number of examples that were not used, by reason."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each annotation file, by its path below the data folder."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Further JSON-compatible results: per-class figures, paths to the root, nearest texts."""
    figures: Sequence[Figure] = ()
    items: Mapping[str, "Items"] = field(default_factory=dict)
    """Numbers of single held-out items by metric, which reduce to it; for intervals."""


class MissingFilesError(Exception):
    """The data folder lacks files of a task; the message names the expected layout."""


class UnsuitableModelError(Exception):
    """A task cannot be evaluated on a model, such as factors without a product space; the message names the reason."""
