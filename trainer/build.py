"""The parts of a run from its configuration: tokenizer, model, optimizer, data."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.devices import resolve_precision
from common.errors import UserError, prefixed
from trainer.accumulate import checkpoint_blocks, set_micro_batch, tower_blocks
from trainer.checkpoints.model import load_state, read_weights
from trainer.checkpoints.open_clip import load_towers
from trainer.checkpoints.rng import seed_generators
from trainer.checkpoints.run import Trained
from trainer.config import TrainConfig
from trainer.data.loader import Loader
from trainer.distributed.process import Process, full_tensor, wrap
from trainer.evaluation.evaluate import Evaluation
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import build_model
from trainer.optim import build_optimizer
from trainer.text.tokenizer import Tokenizer, openai_tokenizer, read_tokenizer


@dataclass(kw_only=True)
class Run(Trained):
    """What training changes, and what it needs for that. `wrapped` is the model as it is called on several ranks."""

    config: TrainConfig
    process: Process
    wrapped: nn.Module
    tokenizer: Tokenizer
    loader: Loader
    evaluation: Evaluation
    precision: Literal["fp32", "bf16", "fp16"]
    step: int = 0  # steps done


def build(config: TrainConfig, process: Process) -> Run:
    """Model, optimizer, data and evaluation, before the first step.

    Raises UserError for what does not fit together.
    """
    check_loss_kernel(config, process)
    precision = resolve_precision(config.precision, process.device)
    with prefixed("evaluation."):
        evaluation = Evaluation(config.evaluation)
    tokenizer = build_tokenizer(config)
    seed_generators(config.seed)  # the same weights on every rank
    model = new_model(config).to(process.device)
    check_batch_norms(config, model)
    loader = Loader(
        config.data,
        tokenizer=tokenizer,
        size_px=config.model.image.size_px,
        batch=batch_size_of_rank(config, process),
        needs=model.needs,
        rank=process.rank,
        world_size=process.world_size,
    )
    if config.micro_batch_size:
        set_micro_batch(model, config.micro_batch_size, same_on_all_ranks=config.parallel.strategy == "fsdp")
    if config.compile:
        for block in tower_blocks(model):
            block.forward = torch.compile(block.forward)  # under the checkpoint, which is never compiled itself
    if config.checkpoint_activations:
        checkpoint_blocks(model)
    wrapped = wrap(model, config.parallel, process)
    seed_generators(config.seed + 1 + process.rank)  # what is drawn while training differs
    return Run(
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
    )


def check_loss_kernel(config: TrainConfig, process: Process) -> None:
    """Raise UserError for a kernel that this device cannot run."""
    if config.model.loss_kernel != "triton":
        return
    if process.device.type != "cuda":
        raise UserError(
            f"model.loss_kernel=triton needs a CUDA device and this run is on {process.device.type}; "
            "use model.loss_kernel=chunked, or device=cuda where there is a GPU"
        )
    if find_spec("triton") is None:
        raise UserError("model.loss_kernel=triton needs the package triton: pip install triton, or give chunked")


def new_model(config: TrainConfig) -> DualEncoder:
    """The model at its start: drawn from the seed, or with the weights of `init`."""
    try:
        model = build_model(config.model_name, config.model)
    except (ValueError, TypeError, AssertionError, RuntimeError, ArithmeticError) as error:  # timm's, of wrong sizes
        raise UserError(f"model_name={config.model_name} cannot be built from model.*: {error}") from error
    check_image_size(model)
    if config.init:  # which holds the towers too
        try:
            load_state(model, read_weights(Path(config.init)), Path(config.init))
        except (OSError, ValueError) as error:
            raise UserError(f"init: {error}") from error
    else:
        load_towers(model)
    return model.train()


def check_image_size(model: DualEncoder) -> None:
    """Raise UserError for a tower that cannot take images of the size it is to be given, by showing it one."""
    size = model.config.image.size_px
    try:
        with torch.no_grad():
            model.eval().image_features(torch.zeros(1, 3, size, size, dtype=torch.uint8))
    except (ValueError, TypeError, AssertionError, RuntimeError) as error:
        raise UserError(
            f"model.image.size_px is {size}, and {model.config.image.name} cannot read such an image: {error}; give the size "
            f"that it is made for, or model.image.kwargs={{img_size: {size}}} where it takes that"
        ) from error


def check_batch_norms(config: TrainConfig, model: DualEncoder) -> None:
    """Raise UserError for options that change what batch norms see: only the rows of a micro-batch, and those twice."""
    asked = [
        f"{key}={value}" for key in ("micro_batch_size", "checkpoint_activations") if (value := getattr(config, key))
    ]
    # Of a frozen tower they are not in training mode, and use what they learned.
    if asked and any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
        raise UserError(
            f"{asked[0]} computes rows apart and twice, but {config.model.image.name} has batch norms, which join the rows of a "
            "batch and count them; leave it out, or give model.image.kwargs={norm_groups: 8} or model.image.frozen=true"
        )


def build_tokenizer(config: TrainConfig) -> Tokenizer:
    text = config.model.text
    try:
        own = config.tokenizer != "openai"
        tokenizer = (
            read_tokenizer(Path(config.tokenizer), text.context_length)
            if own
            else openai_tokenizer(text.context_length)
        )
    except (OSError, ValueError) as error:
        raise UserError(f"tokenizer={config.tokenizer} cannot be read: {error}; give openai, or a merges.txt") from None
    if tokenizer.vocab_size != text.vocab_size:
        raise UserError(
            f"tokenizer={config.tokenizer} has {tokenizer.vocab_size} tokens and model.text.vocab_size is {text.vocab_size}; "
            f"set model.text.vocab_size={tokenizer.vocab_size}"
        )
    return tokenizer


def batch_size_of_rank(config: TrainConfig, process: Process) -> int:
    """Pairs of a step on one rank. The contrastive loss wants as many on each."""
    if config.batch_size % process.world_size:
        raise UserError(
            f"batch_size={config.batch_size} does not divide among {process.world_size} processes; give a multiple of it"
        )
    return config.batch_size // process.world_size


def full_model(run: Run) -> DualEncoder:
    """The model on this rank with all its parameters, to evaluate and to save. Every rank has to ask."""
    if run.wrapped is not run.model or run.process.world_size == 1:
        return run.model
    state = {name: full_tensor(value) for name, value in run.model.state_dict().items()}
    model = build_model(run.config.model_name, run.config.model).to(run.process.device)
    model.load_state_dict(state)
    return model
