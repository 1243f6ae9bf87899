"""An estimate of the memory of a run, before its first step.

The towers need most of it: what the forward pass keeps for the backward pass. It grows in proportion to the images and
to the tokens of texts, so it is measured on two images and two texts; what words, lifts and losses keep, on three pairs.
docs/training.md compares estimates with measured peaks.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hypergrit_common.errors import UserError
from hypergrit_common.processes import free_memory, machine
from trainer.batch import Batch, Stream
from trainer.config import TrainConfig
from trainer.distributed.gather import all_ranks
from trainer.distributed.process import Process
from trainer.encoders.config import CACHED
from trainer.losses.contrast import BYTES_PER_SIMILARITY, chunk_size
from trainer.models.dual_encoder import DualEncoder
from trainer.models.levels import LEVELS
from trainer.models.queries import QUERIES
from trainer.text.syntax import Syntax
from trainer.training.accumulate import tower_blocks

logger = logging.getLogger(__name__)

GB: Final = 1e9
TOLERANCE: Final = 0.8
"""Share of the estimate that must be free: it may be a quarter too large."""
LOADER_BYTES: Final = 120e6
"""Memory of a loader process of its own, beside its batches."""
PHRASE_SHARE: Final = 0.25
"""Tokens of the longest phrase of a batch, as a share of those of a caption: few phrases are longer."""
SHARD_COPIES: Final = 3
"""Copies of its shards that a rank holds while it writes them: that of the step, one without gaps, and the file."""
BOXES: Final = 3
"""Boxes of a pair, if all are used and their number has no limit."""
SHM: Final = "/dev/shm"
SMALL_MACHINE: Final = "jobs/train/small_machine.yaml"


class Saved(NamedTuple):
    """Bytes that a row of a tower keeps for the backward pass: all, the inputs of the blocks, and the largest block."""

    all: float
    inputs: float
    block: float


@dataclass(frozen=True)
class Need:
    """Bytes that a run needs in one memory, by what needs them; and how much of it is free, None if unknown."""

    name: str
    parts: dict[str, float]
    free: float | None

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {n / GB:.1f}" for name, n in self.parts.items() if n >= 0.05 * GB)
        free = "" if self.free is None else f" of {self.free / GB:.1f} GB free"
        return f"{self.total / GB:.1f}{free or ' GB'} in {self.name}{f' ({parts})' if parts else ''}"


def check_memory(
    config: TrainConfig, model: DualEncoder, process: Process, context: AbstractContextManager[Any]
) -> list[Need]:
    """Log the memory that the run will need, and return it. `context` is the autocast of the towers. Collective.

    `model` has no wrappers yet. Raises UserError, with the keys to change, if a memory cannot hold the run.
    """
    with measurable(model), context:
        image_shape, text_shape = config.model.image.row_shape, config.model.text.row_shape
        dtype = torch.float32 if config.model.text.name == CACHED else torch.int64
        image = saved_per_row(
            model, lambda n: model.image_features(torch.zeros(n, *image_shape, device=process.device))
        )
        text = saved_per_row(
            model, lambda n: model.text_features(torch.ones(n, *text_shape, dtype=dtype, device=process.device))
        )
        ranks = all_ranks(machine()).count(machine())
        refuse(needs(config, model, process, image, text, 0.0, ranks), config, process)  # before the slow measurement
        boxes = boxes_of_pair(config, model)
        towers = (1 + boxes) * (image.all + text.all)
        pair = saved_per_row(model, lambda n: model(drawn_batch(model, n + 1, boxes, process.device)).loss)
    found = needs(config, model, process, image, text, max(pair.all - towers, 0.0), ranks)
    if process.is_main:
        logger.info("memory, estimated: %s", "; ".join(map(str, found)))
    refuse(found, config, process)
    return found


def refuse(found: Sequence[Need], config: TrainConfig, process: Process) -> None:
    """Raise UserError on all ranks if a memory of one of them cannot hold the run. Collective."""
    problems = [need for need in found if need.free is not None and TOLERANCE * need.total > need.free]
    texts = [problem(need, config, process) for need in problems] if config.check_memory else []
    if message := next((item for part in all_ranks(texts) for item in part), ""):
        raise UserError(message)


def boxes_of_pair(config: TrainConfig, model: DualEncoder) -> int:
    """The number of boxes that a pair has in training, at most or as a guess."""
    data = config.data
    return 0 if "boxes" not in model.needs else 1 if data.boxes == "random" else data.max_boxes or BOXES


def drawn_batch(model: DualEncoder, n: int, boxes: int, device: torch.device) -> Batch:
    """A batch of n pairs with the longest texts, and with the boxes, parses and labels that the model needs."""
    shape, length = model.config.image.row_shape, model.config.text.context_length
    dtype = torch.float32 if model.config.text.name == CACHED else torch.int64

    def images(rows: int) -> Tensor:
        return torch.zeros(rows, *shape, dtype=torch.uint8 if len(shape) > 1 else torch.float32, device=device)

    def texts(rows: int) -> Tensor:
        return torch.ones(rows, *model.config.text.row_shape, dtype=dtype, device=device)

    batch = Batch(images=images(n), token_ids=texts(n))
    if QUERIES in model.needs and len(shape) == 1:  # stored features have the states of patches
        patches = model.config.image.kwargs.get("patches", 1)
        batch = replace(batch, images=images(n)[:, None].repeat(1, 1 + patches, 1))
    if boxes:
        owner = torch.arange(n, device=device).repeat_interleave(boxes) if boxes > 1 else None
        batch = replace(batch, box_images=images(n * boxes), box_token_ids=texts(n * boxes), box_owner=owner)
    if "parse" in model.needs:
        words = torch.arange(length, device=device).repeat(n, 1)
        batch = replace(batch, syntax=Syntax(word_of_token=words, head=words // 2, relation=torch.zeros_like(words)))
        if dtype.is_floating_point:  # stored features have the states of tokens, trainer/encoders/cached.py
            batch = replace(batch, token_ids=texts(n)[:, None].repeat(1, 1 + 2 * length, 1))
    if QUERIES in model.needs:  # two of a pair
        own = torch.arange(n, device=device).repeat_interleave(2)
        parent = torch.tensor([-1, 0], device=device).repeat(n)
        parent[1::2] = 2 * torch.arange(n, device=device)
        weight = torch.ones(2 * n, device=device)
        batch = replace(batch, more={QUERIES: Stream(texts(2 * n), "text", own, chain=2, weight=weight, parent=parent)})
    if LEVELS in model.needs:  # one label of a pair
        own = torch.arange(n, device=device)
        batch = replace(batch, more={LEVELS: Stream(texts(n), "text", own, torch.zeros_like(own), own, chain=1)})
    return batch


@contextmanager
def measurable(model: DualEncoder) -> Iterator[None]:
    """Let batch norms use their statistics, which two rows must not change."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    try:
        yield
    finally:
        model.train()


def saved_per_row(model: DualEncoder, forward: Callable[[int], Tensor]) -> Saved:
    """The bytes that `forward` of one more row keeps, without weights and their copies in half precision."""
    one, two = saved_bytes(model, lambda: forward(1)), saved_bytes(model, lambda: forward(2))
    return Saved(*(b - a for a, b in zip(one, two, strict=True)))


def saved_bytes(model: DualEncoder, forward: Callable[[], Tensor]) -> Saved:
    """The bytes that a forward pass keeps for the backward pass, of blocks and of all, without the weights."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}  # by storage; holding them keeps addresses from being used again
    before: list[int] = []
    inputs: list[int] = []
    blocks: list[int] = [0]

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def total() -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    def enter(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        before.append(total())
        inputs.extend(item.nbytes for item in arguments[:1] if isinstance(item, Tensor))

    def leave(*_: Any) -> None:
        blocks.append(total() - before.pop())

    hooks = [block.register_forward_pre_hook(enter) for block in tower_blocks(model)]
    hooks += [block.register_forward_hook(leave) for block in tower_blocks(model)]
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = forward()
    finally:
        for hook in hooks:
            hook.remove()
    del result
    return Saved(total(), sum(inputs) + total() - sum(blocks), max(blocks))


def needs(
    config: TrainConfig, model: DualEncoder, process: Process, image: Saved, text: Saved, pair: float, ranks: int
) -> list[Need]:
    """The memory that the run needs on its device, on the host and in /dev/shm, for the `ranks` processes of this machine.

    `pair` are the bytes that a pair keeps beyond the towers.
    """
    data, pairs = config.data, config.batch_size // process.world_size
    boxes = boxes_of_pair(config, model)
    images, captions, phrases = pairs * (1 + boxes), pairs, pairs * boxes
    batch = images * math.prod(config.model.image.row_shape) + 8 * math.prod(config.model.text.row_shape) * (
        captions + phrases
    )
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    shards = process.world_size if config.parallel.strategy == "fsdp" else 1
    state = 2 * trained / shards  # of Adam; the weights exist already
    average = trained / shards if config.optim.ema else 0.0
    # Gradients replace activations during the backward pass; DDP holds them from the first step.
    kept = activations(config, image, text, images, captions, phrases)
    passes = max(kept, trained / shards) + (trained if process.world_size > shards else 0.0)
    chunk = chunk_size(config.model.loss_chunk, process.device) or config.batch_size * pairs
    step = {
        "activations": passes,
        "losses": BYTES_PER_SIMILARITY * min(chunk, config.batch_size * pairs * (1 + boxes)) + pairs * pair,
        "optimizer": state + average,
    }
    queued = data.n_workers * data.prefetch * batch
    saved = sum(p.nbytes for p in model.parameters()) + (3 if config.optim.ema else 2) * trained
    copies = SHARD_COPIES * saved / process.world_size if config.save.sharded else saved / ranks
    host = {
        # Of several processes, each holds two more batches, whose numbers of rows it announces.
        "loader processes": data.n_workers * (LOADER_BYTES + batch)
        + (5 if process.world_size > 1 else 3) * batch
        + queued,
        "checkpoint": copies if process.is_main or config.save.sharded else 0.0,
    }
    host_free = shm_free = None
    with suppress(OSError, KeyError):
        host_free = float(free_memory())
    with suppress(OSError):
        found = os.statvfs(SHM)
        shm_free = float(found.f_bavail * found.f_frsize)
    on_gpu = process.device.type == "cuda"
    parts = {name: n * ranks for name, n in (host if on_gpu else step | host).items()}
    result = [Need("memory of the machine", parts, host_free), Need(SHM, {"batches": queued * ranks}, shm_free)]
    return [Need("memory of the GPU", step, torch.cuda.mem_get_info(process.device)[0]), *result] if on_gpu else result


def activations(config: TrainConfig, image: Saved, text: Saved, images: int, captions: int, phrases: int) -> float:
    """The bytes that a forward pass of these rows keeps, with the keys of the configuration that bound them."""
    rows = ((image, images), (text, captions), (text._replace(all=text.all * PHRASE_SHARE), phrases))
    most = config.micro_batch_size
    if most and config.checkpoint_activations:
        return max(min(n, most) * (row.inputs + row.block) for row, n in rows)
    if most:
        return max(min(n, most) * row.all for row, n in rows)
    if config.checkpoint_activations:
        return sum(n * row.inputs for row, n in rows) + max(n * row.block for row, n in rows)
    return sum(n * row.all for row, n in rows)


def problem(need: Need, config: TrainConfig, process: Process) -> str:
    """The message about a memory that is too small, with the keys to change."""
    largest = max(need.parts, key=need.parts.__getitem__)
    if need.name == SHM:
        fix = "lower data.workers or data.prefetch, or enlarge /dev/shm (docker run --shm-size)"
    elif largest == "activations":
        rows = 2 ** max(int(config.batch_size // process.world_size).bit_length() - 2, 0)
        fix = f"lower batch_size, or set micro_batch_size={min(rows, 64)}, which gives the same gradient"
        fix += ", and checkpoint_activations=true"
    elif largest == "losses":
        fix = "lower batch_size or model.loss_chunk"
    elif largest == "loader processes":
        fix = "lower data.workers, data.prefetch or batch_size"
    else:
        fix = "choose smaller towers (model.image, model.text)"
    small = "" if process.device.type == "cuda" else f"; {SMALL_MACHINE} does this for a first try on a CPU"
    return f"the run needs about {need}: {fix}{small}. check_memory=false starts it all the same"
