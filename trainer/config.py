"""The configuration of a training run: frozen dataclasses, a YAML that holds what differs, `key.sub=value` on top.

Each part lives beside what it configures; this file only nests them. `model.*` are the keys of the model that `model_name` chooses.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from omegaconf import OmegaConf

from common.errors import UserError
from common.help import describe
from common.load import Layer, check_positive, check_range, merge, read_layers
from trainer.data.config import DataConfig
from trainer.dual_encoder import ModelConfig
from trainer.encoders.config import OPEN_CLIP
from trainer.evaluation.config import EvaluationConfig
from trainer.models.names import MODELS
from trainer.optim import OptimConfig

SHORT: Final = {"shards": "data.shards", "steps": "optim.steps", "lr": "optim.lr"}
"""Short names for the keys users touch most."""

FREE: Final = (
    *("output", "resume", "device", "precision", "micro_batch", "compile", "checkpoint_activations"),
    *("save", "log", "parallel", "ray", "evaluation"),
    *("data.shards", "data.workers", "data.prefetch", "data.index_folder", "model.loss_kernel"),
)
"""Keys and groups that may change when a run goes on from a checkpoint; the loader itself checks that the data are the same."""


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints of the run, in OUTPUT/checkpoints."""

    every: int = 1000  # steps between checkpoints; there is also one at the end, and one when the run is told to stop
    keep: int = 3  # how many checkpoints are kept, the newest ones

    def __post_init__(self) -> None:
        check_range(self, "every", "keep", least=1)


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What is written down while training."""

    every: int = 10  # steps between two rows of OUTPUT/metrics.jsonl
    tensorboard: bool = True  # whether event files go to OUTPUT/tensorboard too; needs the package tensorboard
    # project of Weights & Biases to which the figures go too; needs the package wandb; none: to no project
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        check_range(self, "every", least=1)


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Several processes, started by torchrun or by Ray Train."""

    # how several processes share the model: ddp, each holds all of it; fsdp, each holds a share of it
    strategy: Literal["ddp", "fsdp"] = "ddp"
    timeout_s: float = 600.0  # time, in seconds, after which a process that says nothing counts as lost

    def __post_init__(self) -> None:
        check_range(self, "timeout_s", least=1, most=10**9)


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Processes started by Ray Train, over a cluster (see trainer/on_ray.py)."""

    # processes that Ray starts; 0: no Ray, this process trains alone or with those that torchrun started
    workers: int = 0
    address: str | None = None  # cluster to join; none: RAY_ADDRESS if set, else a Ray of its own on this machine
    cpus_per_worker: float = 1.0  # CPUs that Ray sets aside for each training process, its loader processes included
    max_failures: int = 3  # how often the run goes on from its last checkpoint after a process or machine was lost

    def __post_init__(self) -> None:
        check_range(self, "workers", "max_failures", least=0)
        check_positive(self, "cpus_per_worker")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a training run depends on."""

    model_name: str = "hycoclip"  # which model is trained; --help model_name=NAME shows the keys of that one
    output: str = (
        ""  # folder of the run: checkpoints/, metrics.jsonl, tensorboard/, model/, evaluation.json, config.yaml
    )
    # weights to start from: a folder that the trainer wrote, or a released .pth file; none: random ones
    init: str | None = None
    # how texts become tokens: openai, the tokenizer of OpenAI's CLIP, or a merges.txt in its format
    tokenizer: str = "openai"
    batch: int = 768  # image-text pairs of one step, over all processes
    # rows (images or texts) that go through a tower together; fewer need less memory, with the same gradient; none: all
    # of the step
    micro_batch: int | None = None
    # number format of the towers' arithmetic: fp32, bf16, or fp16 as in the papers; losses are always float32
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    device: str = "auto"  # where the model is trained: cuda, cpu, or auto: cuda where there is one
    seed: int = 0  # random seed of the first weights and of what is drawn while training
    # whether the run goes on from the newest checkpoint in its output folder. auto: if there is one; never: refuse a
    # folder that has one; anyway: also from one of other settings, if its tensors fit.
    resume: Literal["auto", "never", "anyway"] = "auto"
    compile: bool = False  # whether torch.compile makes the blocks of the towers faster; takes its time at the start
    # keep only the inputs of the towers' blocks and compute the rest again in the backward pass: less memory, more time
    checkpoint_activations: bool = False
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    save: SaveConfig = field(default_factory=SaveConfig)
    log: LogConfig = field(default_factory=LogConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    def __post_init__(self) -> None:
        if not self.output:
            raise UserError("output is not set; put it in the YAML or give output=FOLDER on the command line")
        if "://" in self.output:
            raise UserError(f"output={self.output}: a run needs a folder that every machine can reach, not a URL")
        if not self.data.shards:
            raise UserError("data.shards is not set; give shards=FOLDER with the training shards")
        check_range(self, "batch", "micro_batch", least=1)
        check_range(self, "seed", least=0, below=2**63)
        if self.precision == "fp16" and self.parallel.strategy == "fsdp":
            raise UserError("precision=fp16 does not go with parallel.strategy=fsdp; use precision=bf16")
        if self.model.boxes_as_pairs and self.data.boxes == "all":
            raise UserError("model.boxes_as_pairs takes one box a pair; use data.boxes=random, or give false")
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise UserError(f"device is {self.device!r}; it is auto, cuda or cpu")


def load_config(path: str | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """The defaults, then the YAML at `path`, then `key=value` overrides.

    Raises UserError naming the file or key and the mend.
    """
    layers = read_layers(path, overrides, SHORT)
    kind = model_kind(layers)
    config = merge(TrainConfig, [*sizes_of_towers(layers), *layers], {"model": kind})
    assert isinstance(config, TrainConfig)
    return config


def model_kind(layers: Sequence[Layer]) -> type:
    """The configuration class of the model that the layers choose."""
    name, where = TrainConfig.model_name, "default"
    for layer, source in layers:
        if not isinstance(layer.get("model", {}), dict | type(layer)):
            raise UserError(f"{source}: `model` is a group of keys; the model is chosen by model_name={layer.model}")
        if "model_name" in layer:
            name, where = str(layer.model_name), source
    if name not in MODELS:
        raise UserError(f"{where}: model_name {name!r} is none of {', '.join(MODELS)}")
    return MODELS[name][1]


def sizes_of_towers(layers: Sequence[Layer]) -> list[Layer]:
    """What open_clip's architectures say of the towers that the layers choose; layers that say otherwise come on top."""
    names: dict[str, str | None] = {"image": None, "text": None}
    for layer, _ in layers:
        names = {part: OmegaConf.select(layer, f"model.{part}.name") or name for part, name in names.items()}
    chosen = {part: name for part, name in names.items() if isinstance(name, str) and name.startswith(OPEN_CLIP)}
    if not chosen:
        return []
    from trainer.encoders.open_clip_towers import own_sizes  # importing open_clip takes seconds

    try:
        sizes = own_sizes(chosen.get("image"), chosen.get("text"))
    except ValueError as error:
        raise UserError(f"model.{error}") from None
    return [(OmegaConf.create({"model": sizes}), "open_clip")]


def help_text(usage: str, overrides: Sequence[str] = ()) -> str:
    """The whole of --help, with the keys of the model that `overrides` choose."""
    kind = model_kind(read_layers(None, [item for item in overrides if item.startswith("model_name=")], SHORT))
    return describe(usage, TrainConfig, SHORT, {"model": kind})


def as_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain values, as JSON gives them back."""
    plain = json.loads(json.dumps(OmegaConf.to_container(OmegaConf.structured(config))))
    assert isinstance(plain, dict)
    return plain


def differences(saved: dict[str, Any], config: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: SAVED, now CONFIG` for each key that has to agree and does not."""
    found = []
    # What has a name of its own comes before groups: another model has other keys throughout.
    for key in sorted(saved.keys() | config.keys(), key=lambda key: (isinstance(saved.get(key), dict), key)):
        name, before, after = prefix + key, saved.get(key), config.get(key)
        if name in FREE or before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{name}.")
        else:
            found.append(f"{name} was {before!r}, is {after!r}")
    return found
