"""The memory of a run on a CPU, estimated before its first step: a laptop without enough swaps or kills processes.

The towers need most of it: what the forward pass keeps for the backward pass. It grows in proportion to the images and
the texts of a step, and is measured on two of each. On a GPU, the first step says that its memory does not suffice.
"""

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from hypergrit_common.errors import UserError
from hypergrit_common.processes import free_memory, machine
from trainer.config import TrainConfig
from trainer.data.text_streams import STREAMS
from trainer.distributed.gather import all_ranks
from trainer.distributed.process import Process
from trainer.encoders.config import CACHED
from trainer.models.dual_encoder import DualEncoder
from trainer.training.accumulate import tower_blocks

logger = logging.getLogger(__name__)

GB: Final = 1e9
TOLERANCE: Final = 0.8  # share of the estimate that must be free: it may be a quarter too large
LOADER_BYTES: Final = 120e6  # of a loader process of its own, beside its batches
PHRASE_SHARE: Final = 0.25  # tokens of the longest phrase of a batch, as a share of those of a caption
BOXES: Final = 3  # boxes of a pair, if all are used and their number has no limit
TEXTS: Final = 5  # rows of a pair in each stream of further texts, such as queries, as long as phrases
SMALL_MACHINE: Final = "jobs/train/small_machine.yaml"


class Saved(NamedTuple):
    """Bytes that one row of a tower keeps for the backward pass: all, and the inputs of the blocks alone."""

    all: float
    inputs: float


def check_memory(
    config: TrainConfig, model: DualEncoder, process: Process, context: AbstractContextManager[Any]
) -> None:
    """Log the memory that a run on a CPU will need. `context` is the autocast of the towers. Collective.

    `model` has no wrappers yet. Raises UserError, with the keys to change, if the machine cannot hold the run.
    """
    if process.device.type != "cpu" or not config.check_memory:
        return
    ranks, free = all_ranks(machine()).count(machine()), math.inf
    with suppress(OSError):  # not Linux
        free = free_memory()
    with context:
        need = ranks * needed(config, model, process) + checkpoint_bytes(config, model)
    text = f"the run needs about {need / GB:.1f} GB of memory"
    if free < math.inf:
        text += f", of {free / GB:.1f} GB free"
    if process.is_main:
        logger.info("%s", text)
    problem = (
        f"{text}: set micro_batch_size=8, which gives the same gradient, and checkpoint_activations=true; lower batch_size "
        "or data.workers; or choose smaller towers (model.image, model.text). "
        f"{SMALL_MACHINE} does this for a first try. check_memory=false starts it all the same"
    )
    for found in all_ranks(problem if TOLERANCE * need > free else ""):
        if found:
            raise UserError(found)


def needed(config: TrainConfig, model: DualEncoder, process: Process) -> float:
    """The bytes that a process needs beside its weights: activations, gradients, Adam's state and batches."""
    data, pairs, text = config.data, config.batch_size // process.world_size, config.model.text
    boxes = 0 if "boxes" not in model.needs else 1 if data.boxes == "random" else data.max_boxes or BOXES
    images, phrases = pairs * (1 + boxes), boxes + TEXTS * len(model.needs & STREAMS.keys())
    texts = pairs * (1 + PHRASE_SHARE * phrases)
    dtype = torch.float32 if text.name == CACHED else torch.int64
    model.eval()  # batch norms must not learn from these rows
    image = saved_per_row(model, lambda n: model.image_features(torch.zeros(n, *config.model.image.row_shape)))
    caption = saved_per_row(model, lambda n: model.text_features(torch.ones(n, *text.row_shape, dtype=dtype)))
    model.train()
    blocks = max(len(tower_blocks(model)) / 2, 1)  # of one tower
    if config.checkpoint_activations:  # one block at a time is computed again
        image, caption = (Saved(part.inputs + part.all / blocks, 0) for part in (image, caption))
    most = config.micro_batch_size or math.inf
    kept = (min(images, most) * image.all, min(texts, most) * caption.all)
    activations = sum(kept) if config.micro_batch_size is None else max(kept)
    shards = process.world_size if config.parallel.strategy == "fsdp" else 1
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad) / shards
    batch = images * (math.prod(config.model.image.row_shape) + 8 * math.prod(text.row_shape))
    loaders = data.n_workers * (LOADER_BYTES + (1 + data.prefetch) * batch) + 3 * batch
    # Adam has two numbers per weight, the average one. The gradients replace activations during the backward pass.
    return max(activations, trained) + (3 if config.optim.ema else 2) * trained + loaders


def checkpoint_bytes(config: TrainConfig, model: DualEncoder) -> float:
    """The bytes of what one process copies for a checkpoint: the weights, their average, and Adam's two numbers each."""
    weights = sum(p.nbytes for p in model.parameters())
    return weights + (3 if config.optim.ema else 2) * sum(p.nbytes for p in model.parameters() if p.requires_grad)


def saved_per_row(model: DualEncoder, forward: Callable[[int], Tensor]) -> Saved:
    """The bytes that `forward` of one more row keeps, without copies of the weights in half precision."""
    one, two = saved_bytes(model, lambda: forward(1)), saved_bytes(model, lambda: forward(2))
    return Saved(*(b - a for a, b in zip(one, two, strict=True)))


def saved_bytes(model: DualEncoder, forward: Callable[[], Tensor]) -> Saved:
    """The bytes that a forward pass keeps for the backward pass, without the weights."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}  # by storage; holding them keeps addresses from being used again
    inputs: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def enter(_: nn.Module, given: tuple[Any, ...]) -> None:
        inputs.extend(item.nbytes for item in given[:1] if isinstance(item, Tensor))

    hooks = [block.register_forward_pre_hook(enter) for block in tower_blocks(model)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    for hook in hooks:
        hook.remove()
    return Saved(sum(tensor.untyped_storage().nbytes() for tensor in kept.values()), sum(inputs))
