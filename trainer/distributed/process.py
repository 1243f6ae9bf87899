"""Several processes: who and where this one is, and a model that is trained by all of them.

The model knows nothing of it beyond `trainer.distributed.gather.gather`. torchrun and Ray Train start the same training function.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from textwrap import shorten

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from common.devices import pick_device
from common.errors import UserError
from trainer.accumulate import tower_blocks
from trainer.batch import Losses
from trainer.config import ParallelConfig
from trainer.models.dual_encoder import DualEncoder

# FSDP looks for tensors in what a model returns, to be told when the backward pass begins.
pytree.register_dataclass(Losses, field_names=["loss", "terms"])

LOST = ("gloo", "nccl", "connection closed", "connection reset", "timed out", "broken pipe")


class LostProcessError(UserError):
    """Another process of the run is gone. The run can go on from its last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """This process among those of the run."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0


@contextmanager
def session(device: str, timeout_s: float) -> Iterator[Process]:
    """The process of this process, in the group that Ray Train made, or torchrun's, or alone."""
    if dist.is_initialized():
        index = torch.cuda.current_device() if device != "cpu" and torch.cuda.is_available() else 0
        yield Process(device=pick_device(device, index=index), rank=dist.get_rank(), world_size=dist.get_world_size())
        return
    if "WORLD_SIZE" not in os.environ:
        yield Process(device=pick_device(device))
        return
    chosen = pick_device(device, index=int(os.environ.get("LOCAL_RANK", "0")))
    backend = "gloo"
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    yield Process(device=chosen, rank=dist.get_rank(), world_size=dist.get_world_size())
    # After an error the others are no longer there to say goodbye to.
    dist.destroy_process_group()


@contextmanager
def report_lost_processes(process: Process, last_checkpoint: str) -> Iterator[None]:
    """Turn what the backends say of a process that is gone into a message."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).lower()
        if process.world_size == 1 or not (isinstance(error, dist.DistError) or any(word in said for word in LOST)):
            raise
        raise LostProcessError(
            f"process {process.rank} of {process.world_size} lost touch with another one ({shorten(str(error), 160)}). A process or a "
            f"machine ended, or was silent for longer than parallel.timeout_s. {last_checkpoint}; the same command goes on from there"
        ) from error


def wrap(model: DualEncoder, config: ParallelConfig, process: Process) -> nn.Module:
    """The model as the loop calls it. Under FSDP `model` itself is changed: its parameters become shares."""
    if process.world_size == 1:
        return model
    if config.strategy == "ddp":
        # As the images are, and so the gradients of convolutions: DDP's buckets have the layout of the parameters.
        model.to(memory_format=torch.channels_last)
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh(process.device.type, (process.world_size,))
    for block in tower_blocks(model):
        fully_shard(block, mesh=mesh)
    # FSDP takes no 0-d parameters. The few numbers that lie on the model itself are whole on every rank.
    fully_shard(model, mesh=mesh, ignored_params=set(loose_parameters(model)))
    return model


def loose_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Temperature, curvature and scales: what belongs to no tower."""
    return list(model.parameters(recurse=False))


def average_loose_gradients(model: nn.Module, wrapped: nn.Module, process: Process) -> None:
    """What FSDP does not average."""
    if process.world_size == 1 or isinstance(wrapped, DistributedDataParallel):
        return
    gradients = [parameter.grad for parameter in loose_parameters(model) if parameter.grad is not None]
    if gradients:
        flat = average(torch.cat([gradient.flatten() for gradient in gradients]), process)
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def average(values: Tensor, process: Process) -> Tensor:
    """Mean over the ranks."""
    if process.world_size > 1:
        dist.all_reduce(values)
        values /= process.world_size
    return values


def all_agree(fine: bool, process: Process) -> bool:
    """Whether it is fine on every rank. Waits for all of them."""
    return average(torch.tensor(float(fine), device=process.device), process).item() == 1.0


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """L2 norm over all gradients, of whole and of shared-out parameters."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    shared = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    plain = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    norms = [full_tensor(nn.utils.get_total_norm(part)) for part in (shared, plain) if part]
    return torch.stack(norms).norm()


def full_tensor(value: Tensor) -> Tensor:
    """A parameter or a state of the optimizer with all its shares. Every rank has to ask."""
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def copy_sharded(target: Tensor, value: Tensor) -> None:
    """Put a whole `value` into `target`, of which this rank may hold a share."""
    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(value)
