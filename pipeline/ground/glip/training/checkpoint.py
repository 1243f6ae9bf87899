"""The checkpoint of a training run: the averaged weights as a grounder, and beside them all that the run goes on from.

Both are safetensors, which hold the same bytes for the same numbers, whether a run was killed on its way to them or not.
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
class Run:
    """What training changes: all that a checkpoint holds."""

    model: Glip
    optimizer: torch.optim.AdamW
    averaged: Averaged
    sums: Tensor  # of the losses since the last line of the log
    step: int = 0  # the next one


def next_step(out: Path) -> int:
    """The step at which a run in `out` goes on; 0 without a checkpoint. Raises UserError for a damaged one."""

    def step(path: Path) -> int:
        with safe_open(path, "pt") as file:
            return int(file.get_tensor("step"))

    return _reading(out / STATE, step) if (out / STATE).exists() else 0


def restore(out: Path, run: Run) -> None:
    """Put `run` where its checkpoint stands; without one it stays. Raises UserError for a damaged one."""
    if (out / STATE).exists():
        _reading(out / STATE, lambda path: _load(path, run))


def _reading(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is damaged; delete it to train from the start") from error


def _load(path: Path, run: Run) -> None:
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in read_tensors(path, next(run.model.parameters()).device).items():
        kind, _, name = key.partition("/")
        parts.setdefault(kind, {})[name] = value
    moments: dict[int, dict[str, Tensor]] = {}  # of each parameter that had a gradient
    for name, value in parts["optimizer"].items():
        number, _, moment = name.partition("/")
        moments.setdefault(int(number), {})[moment] = value
    run.model.load_state_dict(parts["model"])
    run.optimizer.load_state_dict({"state": moments, "param_groups": run.optimizer.state_dict()["param_groups"]})
    run.averaged.state = parts["averaged"]
    run.sums = parts["sums"][""].cpu()
    run.step = int(parts["step"][""])


def save(out: Path, run: Run, vocab: Path) -> None:
    """Raises UserError if the disk is full; what was there before stays."""
    tensors = {"step": torch.tensor(run.step), "sums": run.sums}
    tensors |= {f"model/{key}": value for key, value in run.model.state_dict().items()}
    tensors |= {f"averaged/{key}": value for key, value in run.averaged.state.items()}
    for number, moments in run.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{key}": value for key, value in moments.items()}
    try:
        save_glip(out, run.averaged.state, run.model.config, vocab)
        save_tensors({key: value.contiguous() for key, value in tensors.items()}, out / STATE)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"the checkpoint of step {run.step} cannot be written to {out}: {error}; make room, then the same command goes on"
        ) from error
    logger.info("step %d: checkpoint in %s", run.step, out)
