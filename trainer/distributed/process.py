"""The processes of a run and the model that they train together, under DDP or FSDP.

torchrun and Ray Train start the same training function in every process. Models do not depend on this module: they
exchange features through `trainer.distributed.gather` only.
"""

import dataclasses
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import signature
from textwrap import shorten
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from hypergrit_common.devices import pick_device
from hypergrit_common.errors import UserError
from trainer.batch import Losses
from trainer.distributed.config import ParallelConfig
from trainer.distributed.heartbeat import Heartbeat

# FSDP searches the output of a model for tensors: their hooks announce the start of the backward pass.
pytree.register_dataclass(Losses, field_names=[field.name for field in dataclasses.fields(Losses)])

SYNC_BUFFERS: Final = ("forward_sync_buffers", "broadcast_buffers")
"""Names of an argument of DistributedDataParallel: that of recent versions of torch, and that of earlier ones."""
LOST_PROCESS_WORDS: Final = ("gloo", "nccl", "connection closed", "connection reset", "timed out", "broken pipe")
"""Parts of the messages with which the backends report that another process is lost, in lower case."""


class LostProcessError(UserError):
    """Another process of the run has ended or does not respond. The run can resume from its last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """This process and its rank among all processes of the run."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    heartbeat: Heartbeat | None = field(default=None, compare=False)  # with other processes

    @property
    def is_main(self) -> bool:
        """True for rank 0, which writes files and logs."""
        return self.rank == 0


@contextmanager
def process_group(device: str, timeout_s: float) -> Iterator[Process]:
    """Yield this process, after joining the process group of Ray Train or torchrun if either started it.

    Raises UserError if `device` does not exist on this machine.
    """
    chosen = pick_device(device, index=int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # streams, events and pinned memory are those of the current device
    is_given = dist.is_initialized()  # by Ray Train
    if not is_given and "WORLD_SIZE" not in os.environ:
        yield Process(device=chosen)
        return
    if not is_given:
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    heartbeat = Heartbeat(rank, world_size) if world_size > 1 and "MASTER_ADDR" in os.environ else None
    try:
        yield Process(device=chosen, rank=rank, world_size=world_size, heartbeat=heartbeat)
    finally:
        if heartbeat:
            heartbeat.stop()
    if not is_given:  # skipped after an error: this would wait for processes that have ended
        dist.destroy_process_group()


def mark_queued(device: torch.device) -> torch.cuda.Event:
    """Return an event that is reached once a GPU has done what is queued now. Events of another GPU are reached at once."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


@contextmanager
def report_lost_processes(process: Process, last_checkpoint: str) -> Iterator[None]:
    """Raise LostProcessError in place of the errors with which the backends report a lost process.

    `last_checkpoint` is the part of the message that names what the run resumes from.
    """
    try:
        yield
    except RuntimeError as error:
        message = str(error).lower()
        is_lost = isinstance(error, dist.DistError) or any(word in message for word in LOST_PROCESS_WORDS)
        if process.world_size == 1 or not is_lost:
            raise
        lost = process.heartbeat.find_lost() if process.heartbeat else "another process has ended or does not respond"
        raise LostProcessError(
            f"process {process.rank} of {process.world_size} lost a connection ({shorten(str(error), 160)}): {lost}. "
            f"{last_checkpoint}; repeat the command to resume"
        ) from error


def wrap(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    config: ParallelConfig,
    process: Process,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Return the module that the training loop calls: as of `distribute`; in a single process, `model` itself."""
    return model if process.world_size == 1 else distribute(model, blocks, config, process, dtype)


def distribute(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    config: ParallelConfig,
    process: Process,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Return `model` under DDP or FSDP. Needs a process group, of any size.

    FSDP gathers the weights of one of the `blocks` at a time, as `block_policy` says for `dtype`. It changes `model` in
    place: parameters become DTensors, all but `unsharded_parameters`.
    """
    if config.strategy == "ddp":
        # Images are channels_last, and so are the gradients of convolutions. DDP's buckets have the layout of the
        # parameters: without this, each step would copy the gradients, with a warning.
        model.to(memory_format=torch.channels_last)
        # DDPOptimizer would cut each compiled block in two or three; its hooks fire after each block in any case.
        torch._dynamo.config.optimize_ddp = False
        # Buffers are equal on all ranks, except the running statistics of batch norms, where those of rank 0 count.
        name = next(key for key in SYNC_BUFFERS if key in signature(DistributedDataParallel).parameters)
        sync: dict[str, Any] = {name: any(isinstance(module, _BatchNorm) for module in model.modules())}
        return DistributedDataParallel(model, gradient_as_bucket_view=True, **sync)
    mesh = device_mesh(config, process)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=block_policy(dtype, process.device))
    # FSDP does not shard 0-d parameters: every rank keeps the few that belong to the model itself.
    fully_shard(model, mesh=mesh, ignored_params=set(unsharded_parameters(model)))
    return model


def device_mesh(config: ParallelConfig, process: Process) -> DeviceMesh:
    """The processes among which FSDP shards a model, in groups with equal copies if `shard_group` is smaller than all.

    Raises UserError if the groups are not of one size.
    """
    size = config.shard_group or process.world_size
    if process.world_size % size:
        raise UserError(
            f"parallel.shard_group={size} does not divide the {process.world_size} processes; give a divisor of them"
        )
    if size == process.world_size:
        return init_device_mesh(process.device.type, (size,))
    shape = (process.world_size // size, size)
    return init_device_mesh(process.device.type, shape, mesh_dim_names=("replicate", "shard"))


def block_policy(dtype: torch.dtype, device: torch.device) -> MixedPrecisionPolicy:
    """The number formats of a block under FSDP: weights are gathered in `dtype`, gradients are summed in float32.

    The inputs of a block stay as they are, because the residual stream is float32. Embeddings and projections, which
    are no blocks, stay in float32. On a CPU weights do too: its layer norms take no mixed formats.
    """
    param_dtype = dtype if device.type == "cuda" else torch.float32
    return MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def unsharded_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of the model itself, without those of its submodules: temperature, curvature and scales."""
    return list(model.parameters(recurse=False))


def average_unsharded_gradients(model: nn.Module, wrapped: nn.Module, process: Process) -> None:
    """Average the gradients of `unsharded_parameters` over the ranks, which FSDP does not do. Collective.

    Under DDP nothing is done: it averages all gradients.
    """
    if process.world_size == 1 or isinstance(wrapped, DistributedDataParallel):
        return
    gradients = [parameter.grad for parameter in unsharded_parameters(model) if parameter.grad is not None]
    if gradients:
        flat = average(torch.cat([gradient.flatten() for gradient in gradients]), process)
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def average(values: Tensor, process: Process) -> Tensor:
    """Average `values` over the ranks, in place, and return them. Collective."""
    if process.world_size > 1:
        dist.all_reduce(values)
        values /= process.world_size
    return values


def true_on_all_ranks(value: bool, process: Process) -> bool:
    """True if `value` is true on all ranks. Collective, on the host: it does not wait for a GPU."""
    return average(torch.tensor(float(value)), process).item() == 1.0


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The L2 norm over all gradients, sharded and ordinary. Collective if any is sharded."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    ordinary = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    norms = [full_tensor(nn.utils.get_total_norm(part)) for part in (sharded, ordinary) if part]
    return torch.stack(norms).norm()


def clip_gradients(parameters: Iterable[nn.Parameter], norm: Tensor, max_norm: float) -> None:
    """Scale all gradients down to the total norm `max_norm` if `norm`, that of `gradient_norm`, is larger."""
    found = list(parameters)
    for is_sharded in (True, False):  # one operation cannot mix them
        part = [item for item in found if isinstance(item.grad, DTensor) == is_sharded]
        nn.utils.clip_grads_with_norm_(part, max_norm, norm)


def full_tensor(value: Tensor) -> Tensor:
    """Gather a sharded parameter or optimizer state; other tensors are returned unchanged. Collective."""
    return value.full_tensor() if isinstance(value, DTensor) else value


# Signals that ask the processes of a run to stop.

logger = logging.getLogger(__name__)

STOPPING: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
REPEAT_S: Final = 10.0
"""Seconds in which further signals are repeats of the first: torchrun sends its processes each signal once more, and
schedulers send it to all processes, torchrun among them."""


class StopRequest:
    """The signal that asked the run to stop, if any, and its time."""

    signal_number: int | None = None
    received_s = 0.0  # of time.monotonic

    def is_repeated_by(self, signal_number: int) -> bool:
        """True if a further signal asks for the same. A second Ctrl-C, without torchrun, does not."""
        may_repeat = signal_number != signal.SIGINT or "TORCHELASTIC_RUN_ID" in os.environ
        return may_repeat and time.monotonic() - self.received_s < REPEAT_S


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Record SIGTERM, SIGUSR1 or SIGINT, so that the loop stops within two steps.

    A second one that does not repeat the first ends the process at once. Schedulers announce a preemption by SIGTERM,
    or by SIGUSR1 (`sbatch --signal=USR1@60`).

    Signals reach the main thread only: in another thread, such as that of a Ray Train worker, nothing is recorded.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handler(signal_number: int, frame: object) -> None:
        if request.signal_number is not None:
            if request.is_repeated_by(signal_number):
                return
            os._exit(128 + signal_number)
        request.signal_number, request.received_s = signal_number, time.monotonic()
        name = signal.Signals(signal_number).name
        logger.warning("%s received: saving a checkpoint within two steps", name)

    previous = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield request
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)
