"""The state of an unfinished training of the miniature CLIP, in one file beside its output folder."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from common.errors import UserError
from trainer.models.clip import CLIP


@dataclass(frozen=True, kw_only=True)
class ClipState:
    """The objects that change during training. `noise` differs between the processes."""

    model: CLIP
    average: CLIP
    optimizer: torch.optim.Optimizer
    noise: torch.Generator


def state_path(out: Path) -> Path:
    """Return the path of the state of a training with the output folder `out`."""
    return out.with_name(f"{out.name}.resume.pt")


def save_state(state: ClipState, step: int, settings: str, path: Path) -> None:
    """Write the state after `step` steps atomically, on rank 0. Collective. Raises OSError."""
    noise = [torch.empty_like(state.noise.get_state()) for _ in range(dist.get_world_size())]
    dist.all_gather(noise, state.noise.get_state())
    if dist.get_rank():
        return
    parts = {name: getattr(state, name).state_dict() for name in ("model", "average", "optimizer")}
    draft = path.with_name(f".{path.name}.draft")
    draft.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "settings": settings, "noise": noise, **parts}, draft)
    draft.replace(path)


def read_state(path: Path, settings: str) -> dict[str, Any] | None:
    """Read a state; None without a file. Raises UserError if it is damaged or belongs to other settings."""
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = torch.load(path, weights_only=True)
        before = found["settings"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} cannot be read; delete it to train from the start") from error
    if before != settings:
        raise UserError(
            f"{path} belongs to a training with other settings ({before}, not {settings}); repeat its command, or "
            "delete the file to train from the start"
        )
    return found


def restore_state(state: ClipState, found: dict[str, Any]) -> int:
    """Restore what `read_state` returned. Returns the number of finished steps."""
    for name in ("model", "average", "optimizer"):
        getattr(state, name).load_state_dict(found[name])
    state.noise.set_state(found["noise"][dist.get_rank()])
    return int(found["step"])
