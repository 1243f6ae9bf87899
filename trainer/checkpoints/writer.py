"""Write the checkpoints of a run in a thread of its main process, or of all, while the run continues.

`save` copies the state to the memory of the host; everything else happens in the thread. A checkpoint exists once its
folder is renamed, and older ones are removed only then: a run that is killed while it saves loses nothing.

By default, rank 0 gathers shards and writes one file. With `save.sharded` each rank copies and writes its own shards, by
torch.distributed.checkpoint; rank 0 creates the draft before the others write, and renames it once all have written.
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
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, HuggingFaceStorageWriter
from torch.distributed.checkpoint import save as save_shards
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from hypergrit_common.disk import sync
from hypergrit_common.errors import UserError
from hypergrit_common.remote import one_line, store_errors
from hypergrit_common.weights import save_tensors
from trainer.checkpoints.folder import CHECKPOINTS, MARK, TENSORS, RunFolder, kept_checkpoints, list_checkpoints
from trainer.checkpoints.run import FORMAT, TrainingState, first_cause, random_state, rank_file, tensors_of
from trainer.distributed.gather import all_ranks
from trainer.distributed.process import Process, full_tensor, mark_queued, true_on_all_ranks

ALIGNMENT: Final = 64
"""Bytes to which the start of each tensor in the buffer of a checkpoint is rounded up."""
FIX_DISK: Final = "free disk space"
FIX_STORE: Final = "check the network, the bucket and the permission to write to it"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The content of a checkpoint in the memory of the host, or this rank's part of it."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    ranks: list[dict[str, Any]]
    ready: torch.cuda.Event | None  # reached once the device has copied the tensors
    shards: dict[str, Tensor]  # the tensors on the device, which may change: only their shapes and places are used


class CheckpointWriter:
    """Writes the checkpoints of a run to FOLDER/checkpoints, and keeps the newest `keep` and those of steps divisible by
    `keep_every`. Rank 0 writes for all ranks, or each rank its shards if they are `sharded`. Creating one is collective.

    If the run has a URL, a checkpoint is complete only when it has been uploaded.
    """

    def __init__(
        self,
        folder: RunFolder,
        keep: int,
        process: Process,
        keep_every: int | None = None,
        sharded: bool = False,
    ) -> None:
        self.folder, self.keep, self.process, self.keep_every = folder, keep, process, keep_every
        # The threads of the ranks exchange messages of their own while the steps do.
        self.group: Any = dist.new_group(backend="gloo") if sharded and process.world_size > 1 else None
        self.thread: threading.Thread | None = None
        self.step = -1  # of the last checkpoint
        self.buffer = torch.empty(0, dtype=torch.uint8)  # of the host, used again: pinned memory takes seconds
        self.problem, self.fix = "", FIX_DISK
        self.bug: Exception | None = None

    @property
    def has_failed(self) -> bool:
        """True on a rank that writes if the last checkpoint could not be written."""
        return bool(self.problem or self.bug)

    def save(self, step: int, training: TrainingState, loader_state: dict[str, Any], config: dict[str, Any]) -> None:
        """Begin to write a checkpoint, after waiting for the previous one. Collective; errors as in `wait`."""
        self.wait()
        self.step = step
        tensors = tensors_of(training)
        own = tensors
        if self.group is not None:  # of a sharded tensor, the part that this rank holds
            own = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in tensors.items()}
        is_writing = self.process.is_main or self.group is not None
        if is_writing and len(self.buffer) < (size := sum(map(aligned, own.values()))):
            self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self.process.device.type == "cuda")
        copies = copy_tensors(own, self.buffer if is_writing else None)
        state = {"format": FORMAT, "step": step, "config": config, "scaler": training.scaler.state_dict()}
        snapshot = Snapshot(
            step=step,
            tensors=copies,
            state=state | {"ranks": self.process.world_size, "threads": torch.get_num_threads()},
            ranks=gather_states(loader_state, self.process),
            ready=mark_queued(self.process.device) if self.process.device.type == "cuda" else None,
            shards=tensors,
        )
        if is_writing:
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
            if self.group is None:
                write_checkpoint(snapshot, draft, final)
            else:
                write_shards(snapshot, draft, final, self.group)
            if not self.process.is_main:
                return
            names = [path.name for path in list_checkpoints(final.parent)]
            for old in set(names) - kept_checkpoints(names, self.keep, self.keep_every):
                shutil.rmtree(final.parent / old, ignore_errors=True)
            self.fix = FIX_STORE if self.folder.is_remote else FIX_DISK
            self.folder.upload_checkpoint(final, self.keep, self.keep_every)
        except store_errors(SafetensorError, UserError) as error:
            self.problem = one_line(error)
        except Exception as error:
            self.bug = error
        if self.has_failed and self.process.is_main:
            shutil.rmtree(draft, ignore_errors=True)


def gather_states(loader_state: dict[str, Any], process: Process) -> list[Any]:
    """The states of the generators and of the loader of each rank; on rank 0 only. Collective."""
    mine = {"random": random_state(process.device), "loader": loader_state}
    ranks: list[Any] = [mine] * process.world_size
    if process.world_size > 1:
        dist.gather_object(mine, ranks if process.is_main else None)
    return ranks


def aligned(value: Tensor) -> int:
    """The bytes of a full tensor, rounded up."""
    return -(-value.numel() * value.element_size() // ALIGNMENT) * ALIGNMENT


def copy_tensors(tensors: dict[str, Tensor], buffer: Tensor | None) -> dict[str, Tensor]:
    """Copies of the full tensors in `buffer`, by name; none without it. Collective.

    Shards are gathered one tensor at a time. The copies of a GPU's tensors are only queued.
    """
    found, start = {}, 0
    for name, value in tensors.items():
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
    save_tensors({name: value.contiguous() for name, value in snapshot.tensors.items()}, draft / TENSORS)
    complete(snapshot, draft, final)


def complete(snapshot: Snapshot, draft: Path, final: Path) -> None:
    """Write the files beside the tensors of a draft, flush all and rename the folder."""
    files = sorted(path.name for path in draft.iterdir())
    (draft / MARK).write_text(json.dumps(snapshot.state | {"files": files}))
    for rank, state in enumerate(snapshot.ranks):
        rank_file(draft, rank).write_text(json.dumps(state))
    for file in draft.iterdir():
        sync(file)
    sync(draft)
    if final.exists():
        shutil.rmtree(final)
    draft.rename(final)
    sync(final.parent)


def write_shards(snapshot: Snapshot, draft: Path, final: Path, group: dist.ProcessGroup) -> None:
    """Write this rank's part of a checkpoint, as `write_checkpoint` does. Collective.

    Raises the error of the first rank that could not write on all ranks.
    """
    if snapshot.ready is not None:
        snapshot.ready.synchronize()
    planner, writer = HostCopies(snapshot.tensors), DraftWriter(snapshot, draft, final)
    try:
        save_shards(snapshot.shards, storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        raise first_cause(error) from error


class HostCopies(DefaultSavePlanner):
    """Divides tensors on the device among the ranks, and gives the writer their copies on the host."""

    def __init__(self, copies: dict[str, Tensor]) -> None:
        super().__init__()
        self.copies = copies

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self.copies[write_item.index.fqn].contiguous()


class DraftWriter(HuggingFaceStorageWriter):
    """Writes the part of each rank to one safetensors file in a draft, with the places of its shards in the header."""

    def __init__(self, snapshot: Snapshot, draft: Path, final: Path) -> None:
        super().__init__(str(draft), save_distributed=True)
        self.snapshot, self.draft, self.final = snapshot, draft, final

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan  # without creating the folder

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        create_draft(self.draft)  # on rank 0, before any rank writes
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        complete(self.snapshot, self.draft, self.final)  # on rank 0, once all ranks have written


def create_draft(draft: Path) -> None:
    """Create an empty draft folder, and remove drafts that killed runs have left."""
    draft.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in draft.parent.glob(".draft_*"):
        shutil.rmtree(abandoned)
    draft.mkdir()
