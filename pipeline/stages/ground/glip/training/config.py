"""Settings of GLIP's training. Their keys have the same names as those of the trainer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hypergrit_common.config import Keys, check_positive, check_range, merge, read_layers, runtime
from hypergrit_common.devices import check_device
from hypergrit_common.errors import UserError

KEYS: Final = Keys(short={"steps": "optim.steps", "lr": "optim.lr"})
"""Key names of GLIP's training."""

NEW: Final = "new:"
"""Prefix of `init` for random weights."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW, the learning rate schedule, and the averaging of weights.

    The defaults are for fine-tuning a released model; a new model needs lr=2e-3 and language_lr_ratio=1.
    """

    # optimizer steps of the whole run; must be more than warmup_steps
    steps: int = 2500
    # peak learning rate of AdamW, reached after the warm-up
    lr: float = 1e-4
    # learning rate of the language tower, as a multiple of lr
    language_lr_ratio: float = 0.1
    # learning rate of the last step, as a multiple of lr; after the warm-up, the rate follows a cosine
    final_lr_ratio: float = 0.01
    # steps in which the learning rate rises linearly to lr
    warmup_steps: int = 100
    # weight decay of AdamW, which applies to matrices but not to biases and scales
    weight_decay: float = 1e-4
    # maximum norm of the gradient; larger gradients are scaled down to it
    max_gradient_norm: float = 1.0
    # decay per step of the exponential moving average of the weights, 0 to below 1; the saved model is this average
    ema: float = 0.992
    # interval, in steps, at which the weights and AdamW's moments are averaged over all processes; checkpoints are
    # written only at these steps and at the last one
    average_every: int = 6

    def __post_init__(self) -> None:
        check_positive(self, "lr", "max_gradient_norm", "average_every")
        check_range(self, "language_lr_ratio", "final_lr_ratio", "warmup_steps", "weight_decay", least=0)
        check_range(self, "ema", least=0, below=1)
        if self.steps <= self.warmup_steps:
            raise UserError(f"steps is {self.steps}; give more than warmup_steps, {self.warmup_steps}")


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints of the run."""

    # minimum time between two checkpoints, in seconds
    interval_s: float = 180.0

    def __post_init__(self) -> None:
        check_range(self, "interval_s", least=0)


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Metrics written while training."""

    # steps between two rows of OUTPUT/metrics.jsonl
    every: int = 20

    def __post_init__(self) -> None:
        check_positive(self, "every")


@dataclass(frozen=True, kw_only=True)
class GlipTrainConfig:
    """The configuration of a training run."""

    # shards of the pipeline: an output folder, its grit/ or arrow/, a file, a glob, or an fsspec URL of any of these;
    # several are separated by commas; arrow/ must hold images (write.image_bytes), and all its shards must fit in
    # memory
    shards: str = ""
    # folder for the weights, the metrics and the checkpoint
    output: str = runtime("")
    # initial weights: a GLIP model, given as for the key `grounder` of the pipeline; or new:NAME for random weights,
    # where NAME is miniature, glip_t_a, glip_t or glip_l
    init: str = "miniature"
    # vocabulary: a vocab.txt, or owner/name@commit of a repository that contains one; null: the vocab.txt beside the
    # weights, or for a new model one that is built from the captions
    vocabulary: str | None = None
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = runtime("auto")
    # images per step and process
    batch_size: int = 16
    # random seed of the order of examples, of flips and dropout, and of the weights of a new model
    seed: int = 0
    # sizes of the shorter side of images, in pixels; each batch uses one at random (GLIP: 480 to 800 in steps of 80);
    # []: the size in the model's configuration
    short_sides: tuple[int, ...] = ()
    # probability of mirroring an image, 0 to 1 (GLIP: 0.5); captions with "left" and "right" become wrong
    flip: float = 0.0
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer, schedule and averaging."""
    save: SaveConfig = runtime(factory=SaveConfig)
    """When checkpoints are written."""
    log: LogConfig = runtime(factory=LogConfig)
    """When metrics are written."""

    def __post_init__(self) -> None:
        for key in ("shards", "output"):
            if not getattr(self, key):
                raise UserError(f"{key} is not set; see --help")
        check_range(self, "seed", least=0)
        check_range(self, "flip", least=0, most=1)
        check_positive(self, "batch_size", "short_sides")
        check_device(self)


def load_config(arguments: Sequence[str]) -> GlipTrainConfig:
    """Read the configuration from a command line, whose first argument may be the shards.

    Raises UserError naming the file or argument, the key and the fix.
    """
    first = arguments[:1]
    if first and "=" not in first[0] and not first[0].endswith((".yaml", ".yml")):
        arguments = [f"shards={first[0]}", *arguments[1:]]
    config = merge(GlipTrainConfig, read_layers(arguments, KEYS))
    assert isinstance(config, GlipTrainConfig)
    return config
