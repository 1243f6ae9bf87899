"""Write the checkpoints of a run in a thread of its main process, while the run continues.

`save` copies the state to the memory of the host; everything else happens in the thread. A checkpoint exists once its
folder is renamed, and older ones are removed only then: a run that is killed while it saves loses nothing.
"""

import json
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from hypergrit_common.disk import sync
from hypergrit_common.errors import UserError
from hypergrit_common.remote import one_line, store_errors
from hypergrit_common.weights import save_tensors
from trainer.checkpoints.folder import CHECKPOINTS, MARK, RunFolder, kept_checkpoints, list_checkpoints
from trainer.checkpoints.run import FORMAT, TENSORS, TrainingState, random_state, rank_file
from trainer.distributed.gather import all_ranks
from trainer.distributed.process import Process, full_tensor, mark_queued, true_on_all_ranks

ALIGNMENT: Final = 64
"""Bytes to which the start of each tensor in the buffer of a checkpoint is rounded up."""
FIX_DISK: Final = "free disk space"
FIX_STORE: Final = "check the network, the bucket and the permission to write to it"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The content of a checkpoint in the memory of the host."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    ranks: list[dict[str, Any]]
    ready: torch.cuda.Event | None  # reached once the device has copied the tensors


class CheckpointWriter:
    """Writes the checkpoints of a run to FOLDER/checkpoints, and keeps the newest `keep` and those of steps divisible by
    `keep_every`. Rank 0 writes for all ranks.

    If the run has a URL, a checkpoint is complete only when it has been uploaded.
    """

    def __init__(self, folder: RunFolder, keep: int, process: Process, keep_every: int | None = None) -> None:
        self.folder, self.keep, self.process, self.keep_every = folder, keep, process, keep_every
        self.thread: threading.Thread | None = None
        self.step = -1  # of the last checkpoint
        self.buffer = torch.empty(0, dtype=torch.uint8)  # of the host, used again: pinned memory takes seconds
        self.problem, self.fix = "", FIX_DISK
        self.bug: Exception | None = None

    @property
    def has_failed(self) -> bool:
        """True on rank 0 if the last checkpoint could not be written."""
        return bool(self.problem or self.bug)

    def save(self, step: int, training: TrainingState, loader_state: dict[str, Any], config: dict[str, Any]) -> None:
        """Begin to write a checkpoint, after waiting for the previous one. Collective; errors as in `wait`."""
        self.wait()
        self.step = step
        is_main = self.process.is_main
        if is_main and len(self.buffer) < (size := buffer_bytes(training)):
            self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self.process.device.type == "cuda")
        snapshot = take_snapshot(step, training, loader_state, config, self.process, self.buffer if is_main else None)
        if snapshot is not None:
            self.thread = threading.Thread(target=self._write, args=(snapshot,), name=f"checkpoint of step {step}")
            self.thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete. Collective.

        Raises UserError if it could not be written; earlier checkpoints stay.
        """
        self.close()
        if self.bug is not None:
            raise self.bug
        if true_on_all_ranks(not self.problem, self.process):
            return
        last = all_ranks(self.folder.newest_checkpoint())[0]
        raise UserError(
            f"the checkpoint of step {self.step} cannot be written to {self.folder.url}: "
            f"{self.problem or 'process 0 names the reason'}. "
            + (f"{last} is complete" if last else "There is no earlier checkpoint")
            + f"; {self.fix}, then repeat the command to resume"
        )

    def close(self) -> None:
        """Wait for the thread, without raising its error. Not collective."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def _write(self, snapshot: Snapshot) -> None:
        draft, final = (self.folder.path / CHECKPOINTS / f"{kind}_{snapshot.step:08d}" for kind in (".draft", "step"))
        try:
            self.fix = FIX_DISK
            write_checkpoint(snapshot, draft, final)
            names = [path.name for path in list_checkpoints(final.parent)]
            for old in set(names) - kept_checkpoints(names, self.keep, self.keep_every):
                shutil.rmtree(final.parent / old, ignore_errors=True)
            self.fix = FIX_STORE if self.folder.is_remote else FIX_DISK
            self.folder.upload_checkpoint(final, self.keep, self.keep_every)
        except store_errors(SafetensorError, UserError) as error:
            self.problem = one_line(error)
        except Exception as error:
            self.bug = error
        if self.has_failed:
            shutil.rmtree(draft, ignore_errors=True)


def take_snapshot(
    step: int,
    training: TrainingState,
    loader_state: dict[str, Any],
    config: dict[str, Any],
    process: Process,
    buffer: Tensor | None,
) -> Snapshot | None:
    """Copy the state of a run to the host, into `buffer`; None on all ranks but 0, which have no copy. Collective."""
    tensors = copy_tensors(training, buffer)
    mine = {"random": random_state(process.device), "loader": loader_state}
    ranks: list[Any] = [mine] * process.world_size
    if process.world_size > 1:
        dist.gather_object(mine, ranks if process.is_main else None)
    if not process.is_main:
        return None
    state = {
        "format": FORMAT,
        "step": step,
        "config": config,
        "scaler": training.scaler.state_dict(),
        "ranks": process.world_size,
    }
    ready = mark_queued(process.device) if process.device.type == "cuda" else None
    return Snapshot(step=step, tensors=tensors, state=state, ranks=ranks, ready=ready)


def tensors_of(training: TrainingState) -> dict[str, Tensor]:
    """The tensors of model, average and optimizer by name, each whole or this rank's shard."""
    tensors = {f"model/{name}": value for name, value in training.model.state_dict().items()}
    tensors |= {f"average/{name}": value for name, value in training.average.values.items()}
    for name, parameter in training.model.named_parameters():
        state = training.optimizer.state.get(parameter, {})
        # Numbers that are no tensors are counters.
        tensors |= {f"optimizer/{key}/{name}": torch.as_tensor(value) for key, value in state.items()}
    return tensors


def buffer_bytes(training: TrainingState) -> int:
    """The bytes of all full tensors, each rounded up to `ALIGNMENT`."""
    return sum(aligned(value) for value in tensors_of(training).values())


def aligned(value: Tensor) -> int:
    """The bytes of a full tensor, rounded up."""
    return -(-value.numel() * value.element_size() // ALIGNMENT) * ALIGNMENT


def copy_tensors(training: TrainingState, buffer: Tensor | None) -> dict[str, Tensor]:
    """Copies of the full tensors of model, average and optimizer in `buffer`, by name; none without it. Collective.

    Shards are gathered one tensor at a time. The copies of a GPU's tensors are only queued.
    """
    found, start = {}, 0
    for name, value in tensors_of(training).items():
        full = full_tensor(value).detach()
        if buffer is not None:
            part = buffer[start : start + full.numel() * full.element_size()].view(full.dtype)
            found[name] = part.as_strided(full.size(), dense_strides(full)).copy_(full, non_blocking=True)
            start += aligned(full)
    return found


def dense_strides(value: Tensor) -> tuple[int, ...]:
    """The strides of a copy without gaps in the layout of `value`, such as channels last."""
    return torch.empty_like(value, device="meta").stride()


def write_checkpoint(snapshot: Snapshot, draft: Path, final: Path) -> None:
    """Write the files of a checkpoint to `draft`, flush them and rename the folder. Raises OSError."""
    if snapshot.ready is not None:
        snapshot.ready.synchronize()
    create_draft(draft)
    tensors = {name: value.contiguous() for name, value in snapshot.tensors.items()}
    save_tensors(tensors, draft / TENSORS)
    (draft / MARK).write_text(json.dumps(snapshot.state))
    for rank, state in enumerate(snapshot.ranks):
        rank_file(draft, rank).write_text(json.dumps(state))
    for file in draft.iterdir():
        sync(file)
    sync(draft)
    if final.exists():
        shutil.rmtree(final)
    draft.rename(final)
    sync(final.parent)


def create_draft(draft: Path) -> None:
    """Create an empty draft folder, and remove drafts that killed runs have left."""
    draft.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in draft.parent.glob(".draft_*"):
        shutil.rmtree(abandoned)
    draft.mkdir()
