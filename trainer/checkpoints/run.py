"""Checkpoints of a run: everything that the next step depends on, written whole or not at all.

    checkpoints/step_00001000/state.safetensors   model/NAME, and optimizer/KEY/NAME for what AdamW remembers of it
                              state.json          step, configuration, gradient scaler, number of ranks
                              rank_00000.json     of each rank: random number generators, position in the data

No pickle: nothing in a checkpoint is run when it is read. A folder is made under another name and renamed when all of it is on the
disk, so one that is there is complete.
"""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.disk import sync
from common.errors import UserError
from common.json_file import read_object
from common.weights import save_tensors
from trainer.checkpoints.rng import random_state, set_random_state
from trainer.config import TrainConfig, differences
from trainer.distributed.process import Process, all_agree, copy_sharded, full_tensor
from trainer.models.dual_encoder import DualEncoder

logger = logging.getLogger(__name__)

FORMAT = 1
ADAM = ("exp_avg", "exp_avg_sq", "step")


@dataclass(kw_only=True)
class Trained:
    """What training changes."""

    model: DualEncoder
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler


def newest(folder: Path) -> Path | None:
    """The checkpoint to go on from."""
    found = checkpoints(folder)
    return found[-1] if found else None


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, the oldest first."""
    return sorted(folder.glob("step_*"))


def save(
    folder: Path,
    step: int,
    trained: Trained,
    loader_state: dict[str, Any],
    config: dict[str, Any],
    process: Process,
    keep: int,
) -> Path:
    """Write a checkpoint, then remove the oldest beyond `keep`. All ranks call it.

    Raises UserError if it cannot be written; the checkpoints before it stay.
    """
    final, draft = folder / f"step_{step:08d}", folder / f".draft_{step:08d}"
    tensors = gather_state(trained)  # all ranks, since each may hold a share
    state = {
        "format": FORMAT,
        "step": step,
        "config": config,
        "scaler": trained.scaler.state_dict(),
        "ranks": process.world_size,
    }

    def write() -> None:
        if process.is_main:
            save_tensors(tensors, draft / "state.safetensors")
            (draft / "state.json").write_text(json.dumps(state))
        own = {"random": random_state(process.device), "loader": loader_state}
        (draft / f"rank_{process.rank:05d}.json").write_text(json.dumps(own))

    def commit() -> None:
        if process.is_main:
            missing = [rank for rank in range(process.world_size) if not (draft / f"rank_{rank:05d}.json").is_file()]
            if missing:
                raise OSError(
                    f"process {missing[0]} wrote to another disk; output has to be a folder that all machines share"
                )
            for file in draft.iterdir():
                sync(file)
            sync(draft)
            if final.exists():
                shutil.rmtree(final)
            draft.rename(final)
            sync(folder)

    problem = (
        attempt(lambda: begin(draft) if process.is_main else None, process)
        or attempt(write, process)
        or attempt(commit, process)
    )
    if problem:
        before = newest(folder)
        if process.is_main:
            shutil.rmtree(draft, ignore_errors=True)
        raise UserError(
            f"the checkpoint of step {step} cannot be written to {folder}: {problem}. "
            + (f"{before} is complete" if before else "There is none before it")
            + "; make room, then the same command goes on"
        )
    if process.is_main:
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    return final


def attempt(action: Callable[[], None], process: Process) -> str:
    """What went wrong on any rank, empty if nothing. Waits for all of them."""
    problem = ""
    try:
        action()
    except (OSError, SafetensorError) as error:
        problem = str(error)
    return "" if all_agree(not problem, process) else problem or "another process could not write its part"


def begin(draft: Path) -> None:
    """An empty folder; what a killed run left is removed."""
    draft.parent.mkdir(parents=True, exist_ok=True)
    for left in draft.parent.glob(".draft_*"):
        shutil.rmtree(left)
    draft.mkdir()


def gather_state(trained: Trained) -> dict[str, Tensor]:
    """Whole tensors of model and optimizer by name, on the CPU."""
    state = {f"model/{name}": value for name, value in trained.model.state_dict().items()}
    for name, parameter in trained.model.named_parameters():
        memory = trained.optimizer.state.get(parameter, {})
        state |= {f"optimizer/{key}/{name}": memory[key] for key in ADAM if key in memory}
    return {name: full_tensor(value).detach().cpu().contiguous() for name, value in state.items()}


def restore(
    path: Path, trained: Trained, config: TrainConfig, process: Process, anyway: bool = False
) -> tuple[int, dict[str, Any]]:
    """Put a checkpoint into model, optimizer, scaler and generators; returns its step and this rank's position in the data.

    Raises UserError naming the first settings that differ, unless `anyway`.
    """
    state = read_json(path / "state.json")
    if state.get("format") != FORMAT:
        raise UserError(f"{path} has format {state.get('format')}; this version reads format {FORMAT}")
    different = [] if anyway else differences(state["config"], config)
    if different:
        raise UserError(
            f"{path} is of a run with other settings: {'; '.join(different[:3])}"
            f"{f'; and {len(different) - 3} more' if len(different) > 3 else ''}. Set them back, give another output=, "
            "or go on all the same with resume=anyway"
        )
    same = state["ranks"] == process.world_size
    own = read_json(path / f"rank_{process.rank if same else 0:05d}.json")
    fill_state(path, trained)
    trained.scaler.load_state_dict(state["scaler"])
    if same:
        set_random_state(own["random"], process.device)
    else:  # the position in the data is one for all
        logger.warning(
            "%s is of %d processes, this run has %d: random numbers begin anew",
            path,
            state["ranks"],
            process.world_size,
        )
    return int(state["step"]), own["loader"]


def fill_state(path: Path, trained: Trained) -> None:
    """Tensors of a checkpoint into the model and what the optimizer remembers of its parameters."""
    targets = {f"model/{name}": value for name, value in trained.model.state_dict().items()}
    parameters = dict(trained.model.named_parameters())
    try:
        with safe_open(path / "state.safetensors", framework="pt") as file:
            names = set(file.keys())
            for name in sorted(names):
                if name.startswith("optimizer/"):
                    _, key, owner = name.split("/", 2)
                    if owner in parameters and key in ADAM:
                        targets[name] = memory_of(trained.optimizer, parameters[owner], key)
            if wrong := sorted(names ^ targets.keys()):
                raise UserError(f"{path} does not fit this model: {wrong[0].split('/', 1)[-1]} is in one of them alone")
            for name, target in targets.items():
                value = file.get_tensor(name)
                if value.shape != target.shape:
                    raise UserError(
                        f"{path} does not fit this model: {name} is {list(value.shape)}, not {list(target.shape)}"
                    )
                copy_sharded(target, value)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it to go on from the checkpoint before it") from None


def memory_of(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, key: str) -> Tensor:
    """Room for what the optimizer remembers of a parameter."""
    memory = optimizer.state[parameter]
    # Fused, AdamW counts its steps where the parameter is.
    memory[key] = torch.zeros((), device=parameter.device) if key == "step" else torch.zeros_like(parameter)
    room: Tensor = memory[key]
    return room


def read_json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{error}; remove {path.parent} to go on from the checkpoint before it") from None
