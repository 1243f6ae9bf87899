"""Build the parts of a training run from its configuration: tokenizer, model, optimizer, data loader."""

import copy
import dataclasses
import logging
import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from hypergrit_common.devices import limit_threads, resolve_precision, torch_dtype
from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.processes import end_children_with_this_process
from trainer.checkpoints.folder import RunFolder
from trainer.checkpoints.model import StateError, load_frozen, load_state, read_weights, resized, stretched
from trainer.checkpoints.open_clip import load_towers
from trainer.checkpoints.run import TrainingState, seed_generators
from trainer.checkpoints.tokenizer_files import fits, named_tokenizer
from trainer.checkpoints.towers import attach_tower
from trainer.config import TrainConfig
from trainer.data.features import FeatureBuilder, FeatureStore
from trainer.data.loader import Loader
from trainer.data.stream import StreamLoader
from trainer.data.text_streams import STREAMS
from trainer.distributed.process import Process, full_tensor, wrap
from trainer.encoders.cached import CachedImage, CachedText
from trainer.encoders.config import CACHED, TRANSFORMERS
from trainer.encoders.text import StateSource
from trainer.evaluation.held_out.evaluate import Evaluation
from trainer.models.config import SyntaxMERUConfig
from trainer.models.dual_encoder import BOX_NEEDS, DualEncoder
from trainer.models.registry import build_model
from trainer.models.terms import streams_of
from trainer.optim.freeze import Freezing, add_lora, check_patterns, freeze_for_good
from trainer.optim.optimizer import Average, build_optimizer
from trainer.text.base import TextTokenizer
from trainer.training.accumulate import checkpoint_blocks, set_micro_batch, tower_blocks
from trainer.training.memory import check_memory

logger = logging.getLogger(__name__)

TEXT_MULTIPLE: Final = 16
"""On a GPU, texts are padded to a multiple of so many tokens."""
MAX_PARTS: Final = 12
"""Parts of a model that an error lists; weights that differ in more belong to another network."""


@dataclass(kw_only=True)
class Training(TrainingState):
    """A training run in this process: the state that a checkpoint saves, and the parts that training uses.

    `wrapped` is the module that computes the losses: `model` in a single process, else `model` under DDP or FSDP.
    """

    config: TrainConfig
    process: Process
    wrapped: nn.Module
    tokenizer: TextTokenizer
    loader: Loader
    evaluation: Evaluation
    precision: Literal["fp32", "bf16", "fp16"]
    folder: RunFolder
    freezing: Freezing
    is_compiled: bool
    halted: Tensor  # [] on the device: 1 once a loss or a gradient was not finite; later steps change nothing
    step: int = 0  # number of completed steps
    skipped: int = 0  # steps that fp16 has skipped in a row, up to the last step whose values were read


def build(config: TrainConfig, process: Process) -> Training:
    """Build everything that the first step needs: model, optimizer, data loader and evaluation.

    Raises UserError for data that do not exist, and for settings that contradict each other, the data or the device.
    """
    precision = precision_of(config, process.device)
    with prefixed("evaluation."):
        evaluation = Evaluation(config.evaluation, config.data.n_workers)
    tokenizer = build_tokenizer(config)
    seed_generators(config.seed)  # the initial weights are the same on every rank
    model = new_model(config).to(process.device)
    limit_threads(model, process.device)
    add_lora(model, config.lora)
    check_patterns(model, config.optim)
    freeze_for_good(model, config.optim)
    Freezing(model, config.optim).set_modes(config.optim.steps - 1)  # of the last step, which has most in training
    check_batch_norms(config, model)
    check_streams(config, model)
    check_packing(config, model, process.device, precision)
    dtype = torch_dtype(precision)
    if config.bf16_parameters:
        if precision != "bf16":
            raise UserError(f"bf16_parameters=true needs precision=bf16, but the precision of this run is {precision}")
        keep_residuals_in_bf16(model)
    check_memory(config, model, process, torch.autocast(process.device.type, dtype, enabled=precision != "fp32"))
    multiple = config.data.text_multiple or (TEXT_MULTIPLE if process.device.type == "cuda" else 1)
    loader = (StreamLoader if config.data.reader == "webdataset" else Loader)(
        dataclasses.replace(config.data, text_multiple=multiple),
        tokenizer=tokenizer,
        size_px=config.model.image.size_px,
        batch=batch_size_of_rank(config, process),
        needs=model.needs,
        rank=process.rank,
        world_size=process.world_size,
    )
    if config.data.features:
        assert isinstance(loader.builder, FeatureBuilder)
        check_states(config, loader.builder.index)
        if not config.init:
            standardise_heads(model, loader.builder.index)
    if config.micro_batch_size:
        set_micro_batch(model, config.micro_batch_size, same_on_all_ranks=config.parallel.strategy == "fsdp")
    is_compiled = compiles(config, process.device)
    if is_compiled:
        end_children_with_this_process()  # compilers do not notice its end
        compile_parts(model, config)
    if config.checkpoint_activations:
        checkpoint_blocks(model)
    wrapped = wrap(model, tower_blocks(model), config.parallel, process, dtype)
    seed_generators(config.seed + 1 + process.rank)  # random numbers drawn while training differ between ranks
    return Training(
        config=config,
        process=process,
        model=model,
        wrapped=wrapped,
        optimizer=build_optimizer(model, config.optim),
        scaler=torch.amp.GradScaler(process.device.type, enabled=precision == "fp16"),
        tokenizer=tokenizer,
        loader=loader,
        evaluation=evaluation,
        precision=precision,
        folder=RunFolder(config.output, Path(config.output)),
        average=Average(model, config.optim.ema),
        freezing=Freezing(model, config.optim),
        is_compiled=is_compiled,
        halted=torch.zeros((), device=process.device),
    )


def precision_of(config: TrainConfig, device: torch.device) -> Literal["fp32", "bf16", "fp16"]:
    """The number format of the towers. "auto" is fp16 on a GPU without bf16, where fp32 is eight times slower."""
    found = resolve_precision(config.precision, device)
    if config.precision == "auto" and device.type == "cuda" and found == "fp32" and config.parallel.strategy == "ddp":
        logger.info("this GPU does not compute in bf16: precision=auto is fp16")
        return "fp16"
    return found


def compiles(config: TrainConfig, device: torch.device) -> bool:
    """True if the blocks of the towers are compiled: as the setting says, or on a GPU where it is "auto".

    Raises UserError if the setting is true and this machine lacks what compilation needs.
    """
    if config.compile is False or (config.compile == "auto" and device.type != "cuda"):
        return False
    missing = missing_for_compilation(device)
    if missing and config.compile == "auto":
        logger.warning("the blocks of the towers are not compiled, so that training is slower: %s", missing)
    elif missing:
        raise UserError(f"compile=true: {missing}, or set compile=false")
    return not missing


def compile_parts(model: DualEncoder, config: TrainConfig) -> None:
    """Compile the towers or their blocks, the normalisation of pixels, and all that follows the gather of features."""
    towers = [model.visual, model.textual] if config.compile_strategy == "towers" else tower_blocks(model)
    for part in towers:
        part.forward = torch.compile(part.forward)  # checkpoints around it are not compiled
    for name in ("normalised", "losses"):
        setattr(model, name, torch.compile(getattr(model, name)))


def keep_residuals_in_bf16(model: DualEncoder) -> None:
    """Make the blocks of the towers convert their input to bf16, so that their sums stay in it.

    Autocast converts weights for products, and computes norms in float32 from the stream.
    """
    for block in tower_blocks(model):
        block.register_forward_pre_hook(lambda _, inputs: (inputs[0].to(torch.bfloat16), *inputs[1:]))


@contextmanager
def bf16_weights(model: DualEncoder) -> Iterator[None]:
    """Give the blocks of the towers bf16 copies of their weights; gradients reach the fp32 ones, and DDP sums them in fp32.

    The backward pass belongs inside, because it may compute a block again. FSDP makes such copies itself.
    """
    owned = [
        (module, name, value)
        for block in tower_blocks(model)
        for module in block.modules()
        for name, value in module.named_parameters(recurse=False)
        if not isinstance(value, DTensor)
    ]
    for module, name, value in owned:
        module._parameters[name] = value.to(torch.bfloat16)  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, name, value in owned:
            module._parameters[name] = value


def missing_for_compilation(device: torch.device) -> str:
    """Name what torch.compile needs and this machine lacks, with the fix; empty if it lacks nothing."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None or not shutil.which(compiler):
        return "torch.compile needs a C compiler; install gcc and g++"
    if device.type == "cuda" and not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Triton needs the Python headers; install python3-dev"
    if device.type == "cuda" and find_spec("triton") is None:
        return "torch.compile needs the package triton on a GPU; pip install triton"
    return ""


def new_model(config: TrainConfig) -> DualEncoder:
    """Build the model with its initial weights: random ones, or those of `init` and of the towers' `weights`.

    Raises UserError for sizes that do not fit together and for weights that cannot be loaded.
    """
    try:
        model = build_model(config.model_name, config.model)
    except (
        ValueError,
        TypeError,
        AssertionError,
        RuntimeError,
        ArithmeticError,
    ) as error:  # timm raises these for wrong sizes
        raise UserError(f"model_name={config.model_name} cannot be built from model.*: {error}") from error
    attach_tower(model, partial(load_frozen, trust=config.trust))
    if config.model.image.name != CACHED or config.evaluation.shards or config.evaluation.image_folders:
        check_image_size(model)
    if config.init:  # contains the weights of the towers too
        positions = f"textual.{model.textual.positions}"
        try:
            state = stretched(model.textual, config.model.text, read_weights(Path(config.init)), "textual.")
            state = resized(model.visual, state, "visual.")
            load_state(model, state, Path(config.init), config.init_skip)
        except StateError as error:
            parts = list(dict.fromkeys([*config.init_skip, *map(part_of, error.entries)]))
            is_learned = any("pos" in entry for entry in error.entries)  # drawn anew, positions would be lost
            fix = "" if is_learned or len(parts) > MAX_PARTS else f"; init_skip=[{','.join(parts)}] leaves them out"
            n_old, n_new = (len(values.get(positions, ())) for values in (state, model.state_dict()))
            if error.entries == [positions] and n_old and n_old != n_new:
                fix = f"; set model.text.context_length={n_old}"
                fix += f", or model.text.stretch_after={n_old // 4}, which stretches later positions" * (n_old < n_new)
            raise UserError(f"init: {error}{fix}") from error
        except (OSError, ValueError) as error:
            raise UserError(f"init: {error}") from error
    else:
        load_towers(model)
    check_limits(model)
    model.begin_step(0)
    return model.train()


def check_limits(model: DualEncoder) -> None:
    """Raise UserError if a course leaves the limits to which the model clamps a learned scalar."""
    steps = [step for parts in model.courses.values() for part in parts for step in part.steps]
    tried = copy.deepcopy(model) if steps else model  # clamping changes weights
    for step in steps:
        tried.begin_step(step)
        tried.clamp_parameters()
        for setting, (name, value) in tried.start_values().items():
            if setting in tried.courses and not (tried.get_parameter(name) - value).abs().max() < 1e-5:
                problem = f"is {tried.scheduled[setting]:g} at step {step}, beyond the limit of the model's {name}"
                raise UserError(f"model.schedules.{setting} {problem}; give other values, or another limit")


def standardise_heads(model: DualEncoder, store: FeatureStore) -> None:
    """Let the heads standardise the features that they are trained on."""
    for tower, features in zip((model.visual, model.textual), store.sample(), strict=True):
        if isinstance(tower, CachedImage | CachedText):
            tower.head.standardise(features.to(tower.head.mean.device))


def check_states(config: TrainConfig, store: FeatureStore) -> None:
    """Raise UserError if the stored states of tokens are others than those that the model names."""
    model = config.model
    if not isinstance(model, SyntaxMERUConfig) or config.data.texts == "tokens":
        return
    stored, named = StateSource(**store.tokens), StateSource(kind=model.word_states, block=model.word_block)
    if stored.kind != named.kind or (stored != named and stored.kind != "tower"):
        raise UserError(
            f"data.features has the states word_states={stored.kind} and word_block={stored.block} of tokens, but "
            f"model.word_states is {named.kind} and model.word_block {named.block}; set these alike, or write other features"
        )


def part_of(entry: str) -> str:
    """The part of a model to leave out for an entry of its state dict: a scalar, a projection, or a layer of a tower."""
    parts = entry.split(".")
    return ".".join(parts[:-1] if len(parts) > 2 else parts[:1] if parts[0].endswith("_proj") else parts)


def check_image_size(model: DualEncoder) -> None:
    """Run the image tower on one image of `size_px`. Raises UserError if the tower does not accept it."""
    size = model.config.image.size_px
    try:
        with torch.no_grad():
            model.eval().image_features(torch.zeros(1, 3, size, size, dtype=torch.uint8))
    except (ValueError, TypeError, AssertionError, RuntimeError) as error:
        raise UserError(
            f"model.image.size_px is {size}, and {model.config.image.name} cannot read images of this size: {error}; "
            "set it to the size that the network is built for or, if the network supports it, set "
            f"model.image.kwargs={{img_size: {size}}}"
        ) from error


def check_batch_norms(config: TrainConfig, model: DualEncoder) -> None:
    """Raise UserError for settings with which batch norms process a batch in parts, or the same rows twice."""
    used = [
        f"{key}={value}" for key in ("micro_batch_size", "checkpoint_activations") if (value := getattr(config, key))
    ]
    # Batch norms of a frozen tower are in evaluation mode: they use their stored statistics.
    if used and any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
        raise UserError(
            f"{used[0]} passes parts of a batch, or the same rows twice, through a tower, but "
            f"{config.model.image.name} has batch norms, which must process each full batch exactly once; remove this "
            "setting, or set model.image.kwargs={norm_groups: 8} or model.image.frozen=true"
        )


def check_streams(config: TrainConfig, model: DualEncoder) -> None:
    """Raise UserError for a term that names a stream which no batch will have.

    A model with `features` or `text_streams` of its own may make streams there.
    """
    kind, given = type(model), sorted({"image", "text", *BOX_NEEDS, *STREAMS})
    if kind.features is not DualEncoder.features or kind.text_streams is not DualEncoder.text_streams:
        return
    for name, term in streams_of(model.terms()).items():
        where = f"model_name={config.model_name}: the term {term} names the stream {name!r}"
        if name not in given:
            close = "".join(f" (similar: {found})" for found in get_close_matches(name, given, n=1))
            raise UserError(
                f"{where}, which does not exist{close}; give one of {', '.join(given)}, or register it in "
                "trainer.data.text_streams.STREAMS, in the module of the model"
            )
        if (need := BOX_NEEDS.get(name, name)) not in {"image", "text", *model.needs}:
            raise UserError(f"{where}; let `needs` of the class return super().needs | {{{need!r}, ...}}")


def check_packing(config: TrainConfig, model: DualEncoder, device: torch.device, precision: str) -> None:
    """Raise UserError if texts are to be packed, and the run cannot do so."""
    text = config.model.text
    needs = {
        "a GPU, as varlen attention does": device.type == "cuda",
        "precision=bf16 or fp16": precision != "fp32",
        "shards, not data.features": not config.data.features,
        "the papers' text transformer, without noise": text.name is None and not text.embedding_noise,
        "micro_batch_size=null": config.micro_batch_size is None,
        "a model that reads no words of captions": "parse" not in model.needs,
    }
    missing = next((need for need, holds in needs.items() if not holds), None)
    if config.data.pack_texts and missing:
        raise UserError(f"data.pack_texts=true needs {missing}; set data.pack_texts=false")


def build_tokenizer(config: TrainConfig) -> TextTokenizer:
    """Build the tokenizer. Raises UserError if it cannot be read or does not fit the text tower's vocabulary."""
    text = config.model.text
    tokenizer = named_tokenizer(config.tokenizer, text)
    if fits(tokenizer, text):
        return tokenizer
    if text.name == TRANSFORMERS:
        raise UserError(
            f"tokenizer={config.tokenizer} has {tokenizer.vocab_size} tokens and the padding {tokenizer.pad_id}, which do "
            f"not fit model.text.vocab_size={text.vocab_size} and model.text.pad_id={text.pad_id}; give the tokenizer with "
            "which the text tower was trained"
        )
    raise UserError(
        f"tokenizer={config.tokenizer} has {tokenizer.vocab_size} tokens, but model.text.vocab_size is "
        f"{text.vocab_size}; set model.text.vocab_size={tokenizer.vocab_size}"
    )


def batch_size_of_rank(config: TrainConfig, process: Process) -> int:
    """The number of pairs per step on each rank. The contrastive loss needs the same number on all ranks.

    Raises UserError if the batch size is not divisible by the number of processes.
    """
    if config.batch_size % process.world_size:
        raise UserError(
            f"batch_size={config.batch_size} is not divisible by the {process.world_size} processes; "
            f"give a multiple of {process.world_size}"
        )
    return config.batch_size // process.world_size


def full_model(run: Training) -> DualEncoder:
    """The model with all its parameters on this rank, for evaluation and saving. Collective.

    Without FSDP this is `run.model` itself.
    """
    if run.wrapped is not run.model or run.process.world_size == 1:
        return run.model
    state = {name: full_tensor(value) for name, value in run.model.state_dict().items()}
    model = build_model(run.config.model_name, run.model.config).to(run.process.device)
    model.begin_step(run.step)
    model.load_state_dict(state)
    return attach_tower(model, partial(load_frozen, trust=run.config.trust))
