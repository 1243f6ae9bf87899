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
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import UserError
from common.weights import read_tensors, save_tensors
from pipeline.ground.glip.load import save_glip
from pipeline.ground.glip.model import Glip
from pipeline.ground.glip.training.averaging import Averaged

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
    """Return the step at which a run in `out` resumes, or 0 without a checkpoint. Raises UserError if it is damaged."""

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
