"""The configuration of a training run, loaded from YAML files and `key=value` arguments.

The keys of the group `model` depend on the model that `model_name` selects.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Literal

from hypergrit_common.config import (
    Keys,
    Layer,
    Trusting,
    check_positive,
    check_range,
    content_layers,
    default_settings,
    flatten,
    last_value,
    log_left_out,
    make_layer,
    merge,
    merged,
    reaches,
    read_layers,
    runtime,
    runtime_keys,
    saved_layers,
)
from hypergrit_common.config_help import describe, help_topic
from hypergrit_common.devices import Precision, check_device
from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.removed import REMOVED, REMOVED_FROM_TRAIN
from hypergrit_common.urls import clean
from schemas.features import RECORD_NAME
from trainer.data.config import SYNTHETIC, DataConfig
from trainer.data.feature_record import read_records
from trainer.distributed.config import ParallelConfig
from trainer.encoders.config import CACHED
from trainer.encoders.sizes import tower_sizes
from trainer.evaluation.held_out.config import EvaluationConfig
from trainer.models.config import ModelConfig
from trainer.models.registry import DEFAULT, MODELS, use_model
from trainer.models.schedules import check_schedules
from trainer.optim.config import ADAMW, LoRAConfig, OptimConfig

KEYS: Final = Keys(
    short={"shards": "data.shards", "steps": "optim.steps", "lr": "optim.lr"},
    removed=REMOVED_FROM_TRAIN,
)


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Metrics written while training."""

    # steps between two rows of OUTPUT/metrics.jsonl
    every: int = 10
    # also write event files to OUTPUT/tensorboard; needs the package tensorboard
    tensorboard: bool = True
    # Weights & Biases project that receives the metrics; needs the package wandb; null: none
    wandb_project: str | None = None
    # steps to measure after the first three, and as many to trace, with the results in OUTPUT/profile: speed, MFU, peak
    # memory, share of padding, trace and memory snapshot; 0: none
    profile: int = 0

    def __post_init__(self) -> None:
        check_range(self, "every", least=1)
        check_range(self, "profile", least=0)


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints of the run, in OUTPUT/checkpoints."""

    # steps between two checkpoints; the run also saves one at its end and when it receives SIGTERM, SIGINT or SIGUSR1
    every: int = 1000
    # number of checkpoints to keep; older ones are deleted
    keep: int = 3
    # checkpoints of steps divisible by this number are kept for good; null: none
    keep_every: int | None = None
    # with parallel.strategy=fsdp, each process writes its own shards: no process holds all of them. Any number of
    # processes resumes, with or without this option. The output is a folder that all machines share, not a URL
    sharded: bool = False

    def __post_init__(self) -> None:
        check_range(self, "every", "keep", "keep_every", least=1)
        if self.keep_every and self.keep_every % self.every:
            raise UserError(
                f"keep_every={self.keep_every} is not a multiple of save.every={self.every}, so no step is both"
            )


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Processes started by Ray Train on a cluster (trainer/training/on_ray.py)."""

    # number of training processes that Ray starts; 0: train without Ray, in this process or in those of torchrun
    workers: int = 0
    # address of the cluster to join; null: that in RAY_ADDRESS if it is set, else start Ray on this machine
    address: str | None = None
    # CPUs reserved for each training process, including its loader processes
    cpus_per_worker: float = 1.0

    max_failures: ClassVar[int] = 3
    """Restarts from the last checkpoint after the loss of a process or a machine."""

    def __post_init__(self) -> None:
        check_range(self, "workers", least=0)
        check_positive(self, "cpus_per_worker")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Trusting):
    """The configuration of a training run."""

    # model to train, or module:Class of your own (docs/extending.md); --help model_name=NAME lists its settings
    model_name: str = reaches(DEFAULT, *MODELS)
    # folder or URL (s3://...) of the run: checkpoints/, metrics.jsonl, tensorboard/, model/, evaluation.json,
    # config.yaml
    output: str = reaches("", is_runtime=True)
    # initial weights: a run, its folder model/ or one of its checkpoints/, or a released .pth file; null: random weights,
    # or those of model.image.weights and model.text.weights
    init: str | None = reaches(None)
    # parts that init does not set: names of modules or parameters, such as visual_proj and curv, with *, ? and [...] as in
    # the shell. Those of the model keep their random weights, those of init are not used; all others must agree
    init_skip: tuple[str, ...] = ()
    # tokenizer: openai for that of OpenAI's CLIP, or the path of a merges.txt in the same format; for a text tower of
    # transformers, a folder with its fast tokenizer, by default that of its weights
    tokenizer: str = reaches("openai")
    # image-text pairs per step, over all processes
    batch_size: int = 768
    # number of images or texts that a tower processes at once; smaller values need less memory and give the same
    # gradient; null: all images or texts of a step
    micro_batch_size: int | None = runtime(None)
    # number format of the towers: auto, fp32, bf16, or fp16 as in the papers; auto: on a GPU bf16 if it computes in it,
    # else fp16 (with fsdp fp32); on a CPU fp32; losses are always computed in fp32
    precision: Precision = runtime("auto")
    # also keep the weights of the towers' blocks, the residual streams, and the activations that the backward pass needs in
    # bf16: less memory and a faster GPU, small changes of the loss (docs/training.md). Each step copies them from fp32
    # weights, which the optimizer updates, and which checkpoints and model/ hold. Needs precision=bf16
    bf16_parameters: bool = runtime(False)
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = runtime("auto")
    # random seed of the initial weights and of random numbers in the model, such as dropout; see also data.seed
    seed: int = 0
    # behaviour if the output folder holds checkpoints. auto: resume from the newest; never: stop with an error; new_lr:
    # resume even if optim.lr differs; anyway: resume even if settings differ, provided that the tensors fit
    resume: Literal["auto", "never", "new_lr", "anyway"] = runtime("auto")
    # compile the blocks of the towers with torch.compile; the first steps take longer. auto: on a GPU, if the machine
    # has a C compiler and the Python headers
    compile: Literal["auto", True, False] = runtime("auto")
    # what is compiled as one: blocks, each block of the towers by itself; towers, each tower
    compile_strategy: Literal["blocks", "towers"] = runtime("blocks")
    # keep only the inputs of the towers' blocks and recompute the rest in the backward pass: less memory, more time
    checkpoint_activations: bool = runtime(False)
    # stop before the first step on a CPU if the estimated memory does not fit this machine
    check_memory: bool = runtime(True)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    evaluation: EvaluationConfig = runtime(factory=EvaluationConfig)
    save: SaveConfig = runtime(factory=SaveConfig)
    log: LogConfig = runtime(factory=LogConfig)
    parallel: ParallelConfig = runtime(factory=ParallelConfig)
    ray: RayConfig = runtime(factory=RayConfig)

    def __post_init__(self) -> None:
        if not self.output:
            raise UserError("output is not set; put it in the YAML or give output=FOLDER on the command line")
        if not self.data.shards and not self.data.features:
            raise UserError(
                "data.shards is not set; give shards=FOLDER with the training shards, or data.features=FOLDER"
            )
        if self.data.shards == SYNTHETIC and "://" in self.output:
            raise UserError("data=synthetic writes its samples to the output, which must be a folder, not a URL")
        if self.init_skip and not self.init:
            raise UserError(
                "init_skip is set without init; give init=PATH of the weights that the other parts start from"
            )
        check_range(self, "batch_size", "micro_batch_size", least=1)
        if self.batch_size == 1 and self.model.contrastive == "softmax":
            raise UserError(
                "batch_size is 1: the other pairs of a batch are the negatives of the contrastive loss, which is zero "
                "without them; give 2 or more"
            )
        check_range(self, "seed", least=0, below=2**63)
        check_device(self)
        if self.precision == "fp16" and self.parallel.strategy == "fsdp":
            raise UserError("precision=fp16 cannot be combined with parallel.strategy=fsdp; use precision=bf16")
        if self.compile_strategy == "towers" and (self.checkpoint_activations or self.parallel.strategy == "fsdp"):
            raise UserError(
                "compile_strategy=towers cannot be combined with checkpoint_activations or parallel.strategy=fsdp, which "
                "work on blocks; use compile_strategy=blocks"
            )
        if self.save.sharded and self.parallel.strategy == "ddp":
            raise UserError("save.sharded=true needs parallel.strategy=fsdp: with ddp, each process holds all weights")
        if self.save.sharded and "://" in self.output:
            raise UserError(
                f"save.sharded=true cannot write to the URL output={self.output}, to which one process uploads; give a "
                "folder that all machines share, or save.sharded=false"
            )
        if self.optim.name != ADAMW and self.parallel.strategy == "fsdp":
            raise UserError(f"optim.name={self.optim.name} cannot be combined with parallel.strategy=fsdp; use ddp")
        if self.lora.ranks and self.parallel.strategy == "fsdp":
            raise UserError("lora.ranks cannot be combined with parallel.strategy=fsdp; use ddp")
        with prefixed("model."):
            check_schedules(self.model, self.optim.steps)


def load_config(arguments: Sequence[str]) -> TrainConfig:
    """Load the configuration of a command line: the defaults, then YAML files, then `key=value` arguments.

    Raises UserError naming the file or argument, the key and the fix.
    """
    layers = [
        (layer | {"data": {"shards": SYNTHETIC}} if layer.get("data") == SYNTHETIC else layer, where)
        for layer, where in read_layers(arguments, KEYS)
    ]
    saved, given = saved_layers(layers, arguments)
    layers = with_heads([*content_layers(TrainConfig, saved, given), *given])
    log_left_out(TrainConfig, saved, given)
    kind = model_config_class(layers)
    check_model_keys(kind, layers)
    config = merge(TrainConfig, [*tower_sizes(layers), *layers], {"model": kind})
    assert isinstance(config, TrainConfig)
    return config


def with_heads(layers: list[Layer]) -> list[Layer]:
    """Layers whose towers are heads over the features that `data.features` names, if any; others as they are.

    Features replace the shards of a YAML file. Of the towers that the layers configure, only the hidden layers of the
    heads stay; with `data.texts=tokens`, the text tower is that of the layers. Raises UserError if there are no features.
    """
    features = last_value(layers, "data.features")
    if not features:
        return layers
    training = deepcopy(read_records(str(features))[0]["training"])
    parts = {"image", "text"}
    if last_value(layers, "data.texts") == "tokens":
        parts = {"image"}
        training = {"model": {key: value for key, value in training["model"].items() if key != "text"}}
        layers = [(without_head(layer), where) for layer, where in layers]
    kept = [(without_towers(layer, parts, where.endswith((".yaml", ".yml"))), where) for layer, where in layers]
    # The frozen model is followed: it is a local file that counts only with the recorded hash (trainer.checkpoints.towers).
    towers = {name: tower for name, tower in training["model"].items() if name in parts and tower.get("name") == CACHED}
    frozen: dict[str, Any] = {
        "model": {name: {"weights": tower.pop("weights")} for name, tower in towers.items() if "weights" in tower}
    }
    paths = [str(tower["weights"]) for tower in frozen["model"].values()]
    if training.get("tokenizer") in (*paths, *(f"{path}/merges.txt" for path in paths)):
        frozen["tokenizer"] = training.pop("tokenizer")
    trusted = [str(name) for name in (*(last_value(layers, "trust") or ()), last_value(layers, "tokenizer")) if name]
    saved = make_layer(training, f"{features}/{RECORD_NAME}", KEYS)
    ((content, where),) = content_layers(TrainConfig, [saved], [], trusted=trusted)
    return [*kept, (merged(content, frozen), where)]


def without_head(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer without the hidden layers of a head over texts, in place of which a text tower is trained."""
    kept = deepcopy(layer)
    kwargs = ((kept.get("model") or {}).get("text") or {}).get("kwargs") or {}
    for key in ("hidden", "depth"):
        kwargs.pop(key, None)
    return kept


def without_towers(layer: dict[str, Any], parts: set[str], is_file: bool) -> dict[str, Any]:
    """A layer without the settings of the towers `parts`, but for the hidden layers of heads; files without shards."""
    kept = deepcopy(layer)
    if is_file and isinstance(data := kept.get("data"), dict):
        data.pop("shards", None)
    if isinstance(model := kept.get("model"), dict):
        for part in parts & model.keys():
            kwargs = (model[part] or {}).get("kwargs") or {}
            model[part] = {"kwargs": {key: kwargs[key] for key in ("hidden", "depth") if key in kwargs}}
    return kept


def model_config_class(layers: Sequence[Layer]) -> type[ModelConfig]:
    """The configuration class of the model that the layers select. Raises UserError for an unknown model."""
    name, source = TrainConfig.model_name, "default"
    for layer, where in layers:
        if not isinstance(layer.get("model", {}), dict):
            raise UserError(f"{where}: `model` is a group of keys; select a model with model_name={layer['model']}")
        if "model_name" in layer:
            name, source = str(layer["model_name"]), where
    use_model(name)
    if name not in MODELS:
        raise UserError(f"{source}: unknown model_name {name!r}; choose one of {', '.join(MODELS)}")
    return MODELS[name].config


def check_model_keys(kind: type[ModelConfig], layers: Sequence[Layer]) -> None:
    """Raise UserError for a setting that the selected model lacks and others have."""
    for key, where in [(key, where) for layer, where in layers for key in layer.get("model", {})]:
        names = [name for name, entry in MODELS.items() if key in entry.config.__dataclass_fields__]
        if names and key not in kind.__dataclass_fields__:
            name = last_value(layers, "model_name") or TrainConfig.model_name
            raise UserError(
                f"{where}: model_name={name} has no key model.{key}, which {', '.join(names)} have; leave it out"
            )


MAIN: Final = (
    "model_name", "output", "init", "batch_size", "precision", "device", "seed", "resume", "compile", "data.shards",
    "data.features", "data.layout", "data.workers", "optim.lr", "optim.steps", "evaluation.image_folders",
    "evaluation.shards", "save.every", "log.wandb_project", "parallel.strategy", "ray.workers",
)  # fmt: skip
"""The keys that `--help` lists."""


def help_text(usage: str, arguments: Sequence[str] = ()) -> str:
    """The text of --help, with the names of the models, or all settings of the model that the arguments select."""
    selected = [item for item in arguments if item.startswith("model_name=")]
    model = model_config_class(read_layers(selected, KEYS))
    usage, topic = f"{usage.rstrip()}\n\n{model_names()}\n", help_topic(arguments) or ""
    return describe(usage, TrainConfig, KEYS.short, {"model": model}, () if selected else MAIN, topic)


def model_names() -> str:
    """Name the models, and those among them that are experimental."""
    experimental = [name for name, entry in MODELS.items() if entry.is_experimental]
    lines = [f"Values of model_name: {', '.join(MODELS)}."]
    if experimental:
        lines.append(f"Experimental, without figures of their authors to compare with: {', '.join(experimental)}.")
    return "\n".join(lines)


def as_dict(config: TrainConfig) -> dict[str, Any]:
    """Convert the configuration to plain values, which JSON returns unchanged; without `trust`; without secrets."""
    plain = clean(json.loads(json.dumps(asdict(config))), strip_query=False, strip_commands=True)
    assert isinstance(plain, dict)
    return {key: value for key, value in plain.items() if key != "trust"}


def differences(saved: dict[str, Any], config: TrainConfig) -> list[str]:
    """Describe each setting that differs from the configuration of a checkpoint and may not change on resume.

    `saved` is the configuration of the checkpoint, of this version or an earlier one. The shards are not compared here,
    but by the loader.
    """
    free = runtime_keys(TrainConfig, {"model": type(config.model)})
    before, after = flatten(default_settings(config)) | flatten(saved), flatten(as_dict(config))
    now = dict.fromkeys(KEYS.removed, REMOVED) | {key: repr(value) for key, value in after.items()}
    return [
        f"{key} was {before.get(key)!r}, is {now.get(key)}"
        for key in sorted(before.keys() | after.keys(), key=lambda key: ("." in key, key))
        if before.get(key) != after.get(key, KEYS.removed.get(key))
        and not any(f"{key}.".startswith(f"{name}.") for name in free)
    ]
