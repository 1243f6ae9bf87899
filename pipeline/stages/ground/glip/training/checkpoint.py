"""Checkpoints of a training run: the averaged weights as a grounder, and the training state for resuming.

Both are safetensors files whose bytes depend only on the values of the tensors, so a resumed run ends with the same
files as one that was never interrupted.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hypergrit_common.errors import UserError
from hypergrit_common.weights import read_tensors, save_tensors
from pipeline.stages.ground.glip.load import save_glip
from pipeline.stages.ground.glip.model import Glip

# Average the weights: over steps, for the saved model, and over processes.


class Averaged:
    """Exponential moving average of a model's floating-point state. The decay per step rises from 0.1 to `decay`."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {key: value.detach().clone() for key, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Update the average with the weights after `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        pairs = [(self.state[key], value) for key, value in model.state_dict().items() if value.is_floating_point()]
        torch._foreach_lerp_([old for old, _ in pairs], [new for _, new in pairs], 1 - decay)


@torch.no_grad()
def average_processes(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the weights and AdamW's moments by their means over all processes. Collective.

    Does nothing without torch.distributed.
    """
    if not dist.is_initialized():
        return
    tensors = [value for value in model.state_dict().values() if value.is_floating_point()]
    for parameter in model.parameters():
        moments = optimizer.state.get(parameter, {})
        tensors += [moments[key] for key in ("exp_avg", "exp_avg_sq") if key in moments]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


logger = logging.getLogger(__name__)

STATE = "state.safetensors"
T = TypeVar("T")


@dataclass(kw_only=True)
class TrainingState:
    """The state that changes during training; checkpoints store all of it."""

    model: Glip
    optimizer: torch.optim.AdamW
    averaged: Averaged
    sums: Tensor  # sums of the three losses since the last row of the metrics
    step: int = 0  # number of finished steps


def next_step(out: Path) -> int:
    """Return the step at which a run resumes.

    Args:
        out: folder of the run.

    Returns:
        Its number, from 0; 0 without a checkpoint.

    Raises:
        UserError: the checkpoint is damaged.
    """

    def read_step(path: Path) -> int:
        with safe_open(path, "pt") as file:
            return int(file.get_tensor("step"))

    return _read_state(out / STATE, read_step) if (out / STATE).exists() else 0


def restore(out: Path, state: TrainingState) -> None:
    """Load the checkpoint in `out` into `state`, if there is one. Raises UserError if it is damaged."""
    if (out / STATE).exists():
        _read_state(out / STATE, lambda path: _load(path, state))


def _read_state(path: Path, read: Callable[[Path], T]) -> T:
    """Return `read(path)`; raise UserError if the file is damaged."""
    try:
        return read(path)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is damaged; delete it to train from the start") from error


def _load(path: Path, state: TrainingState) -> None:
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in read_tensors(path, next(state.model.parameters()).device).items():
        kind, _, name = key.partition("/")
        parts.setdefault(kind, {})[name] = value
    moments: dict[int, dict[str, Tensor]] = {}  # by index of the parameter; parameters without gradients have none
    for name, value in parts["optimizer"].items():
        number, _, moment = name.partition("/")
        moments.setdefault(int(number), {})[moment] = value
    state.model.load_state_dict(parts["model"])
    state.optimizer.load_state_dict({"state": moments, "param_groups": state.optimizer.state_dict()["param_groups"]})
    state.averaged.state = parts["averaged"]
    state.sums = parts["sums"][""].cpu()
    state.step = int(parts["step"][""])


def save(out: Path, state: TrainingState, vocab: Path) -> None:
    """Write the grounder and the state to `out`, each file atomically.

    Raises UserError if a file cannot be written, for example on a full disk; the previous file is kept.
    """
    tensors = {"step": torch.tensor(state.step), "sums": state.sums}
    tensors |= {f"model/{key}": value for key, value in state.model.state_dict().items()}
    tensors |= {f"averaged/{key}": value for key, value in state.averaged.state.items()}
    for number, moments in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{key}": value for key, value in moments.items()}
    try:
        save_glip(out, state.averaged.state, state.model.config, vocab)
        save_tensors({key: value.contiguous() for key, value in tensors.items()}, out / STATE)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"the checkpoint of step {state.step} cannot be written to {out}: {error}; "
            "free disk space, then run the same command to resume"
        ) from error
    logger.info("step %d: checkpoint in %s", state.step, out)
