"""Checkpoints are written by one process, in a thread, and a kill while it writes loses nothing."""

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.forks import replaced
from tests.patience import PATIENCE_S, wait_until
from tests.trainer.small_run import kill, log_path, run, run_forked, small_run
from trainer.checkpoints import writer as module
from trainer.checkpoints.folder import RunFolder, list_checkpoints, newest_checkpoint
from trainer.checkpoints.writer import CheckpointWriter, Snapshot
from trainer.config import as_dict
from trainer.distributed.process import Process
from trainer.training import loop
from trainer.training.step import update

CPU = Process(device=torch.device("cpu"))


def test_training_goes_on_while_a_checkpoint_is_written_and_the_checkpoint_has_the_weights_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = small_run(tmp_path / "run", "optim.warmup_steps=0")
    batch = next(iter(found.loader))
    may_write, real_write = threading.Event(), module.write_checkpoint

    def write(snapshot: Snapshot, draft: Path, final: Path) -> None:
        assert may_write.wait(PATIENCE_S)
        real_write(snapshot, draft, final)

    monkeypatch.setattr(module, "write_checkpoint", write)
    writer = CheckpointWriter(RunFolder(str(tmp_path), tmp_path), 3, CPU)
    update(found, batch)
    saved = found.model.visual_proj.weight.detach().clone()
    writer.save(1, found, found.loader.state_dict(), as_dict(found.config))
    update(found, batch)  # changes the weights while the thread waits
    assert newest_checkpoint(tmp_path / "checkpoints") is None
    may_write.set()
    writer.wait()
    stored = load_file(tmp_path / "checkpoints" / "step_00000001" / "state.safetensors")
    assert torch.equal(stored["model/visual_proj.weight"], saved)
    assert not torch.equal(found.model.visual_proj.weight, saved)


def slow_write(snapshot: Snapshot, draft: Path, final: Path) -> None:
    """Write a part of a checkpoint, then nothing more."""
    module.create_draft(draft)
    (draft / "state.safetensors").write_bytes(b"partly written")
    time.sleep(2 * PATIENCE_S)


def kill_while_saving(output: Path) -> None:
    """Kill this process once the draft of step 10 exists."""
    draft = output / "checkpoints" / ".draft_00000010" / "state.safetensors"
    wait_until(draft.is_file)
    kill()


def test_a_kill_while_saving_loses_nothing(tmp_path: Path, uninterrupted: Path) -> None:
    output, real_write = tmp_path / "run", module.write_checkpoint

    def write(snapshot: Snapshot, draft: Path, final: Path) -> None:
        (slow_write if snapshot.step == 10 else real_write)(snapshot, draft, final)

    with replaced(module, "write_checkpoint", write):
        assert run_forked(output, at=11, faults=[lambda: kill_while_saving(output)]) == [-9]
    assert [path.name for path in list_checkpoints(output / "checkpoints")] == ["step_00000005"]
    assert run_forked(output) == [0], log_path(output).read_text()
    expected = load_file(uninterrupted / "model" / "model.safetensors")
    found = load_file(output / "model" / "model.safetensors")
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert not list((output / "checkpoints").glob(".draft_*"))


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.rest)])
def test_only_rank_0_copies_the_state_and_writes_the_files_of_all_ranks(
    tmp_path: Path, free_port: int, strategy: str
) -> None:
    real_copy = module.copy_tensors

    def copy(tensors: dict[str, torch.Tensor], buffer: torch.Tensor | None) -> dict[str, torch.Tensor]:
        found = real_copy(tensors, buffer)
        with (tmp_path / f"copied_{os.environ['RANK']}").open("a") as file:
            file.write(f"{len(found)}\n")
        return found

    key = f"parallel.strategy={strategy}"
    with replaced(module, "copy_tensors", copy):
        assert run_forked(tmp_path / "run", key, "steps=5", port=free_port, faults=[None, None]) == [0, 0]
    assert int((tmp_path / "copied_0").read_text().split()[0]) > 10
    assert int((tmp_path / "copied_1").read_text().split()[0]) == 0
    names = {path.name for path in (tmp_path / "run" / "checkpoints" / "step_00000005").iterdir()}
    assert names == {"state.safetensors", "state.json", "rank_00000.json", "rank_00001.json"}


@pytest.mark.rest
def test_ranks_that_see_different_checkpoints_are_an_error(tmp_path: Path, free_port: int) -> None:
    output = tmp_path / "run"
    assert run_forked(output, "steps=5", port=free_port, faults=[None, None]) == [0, 0]
    assert run(output, "steps=5") == 0  # the processes share the folder: any number of them resumes
    real = loop.newest_checkpoint
    with replaced(loop, "newest_checkpoint", lambda path: real(path) if os.environ["RANK"] == "0" else None):
        assert run_forked(output, "steps=5", port=free_port, faults=[None, None]) == [2, 2]
    assert "see different checkpoints" in log_path(output, 1).read_text()


def test_checkpoints_use_the_same_memory_of_the_host_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, places = small_run(tmp_path / "run", "optim.warmup_steps=0"), []
    real_write = module.write_checkpoint

    def write(snapshot: Snapshot, draft: Path, final: Path) -> None:
        places.append({name: value.data_ptr() for name, value in snapshot.tensors.items()})
        real_write(snapshot, draft, final)

    monkeypatch.setattr(module, "write_checkpoint", write)
    writer, batch = CheckpointWriter(RunFolder(str(tmp_path), tmp_path), 3, CPU), next(iter(found.loader))
    for step in (1, 2):
        update(found, batch)
        writer.save(step, found, found.loader.state_dict(), as_dict(found.config))
    writer.wait()
    assert places[0] == places[1]
    stored = load_file(tmp_path / "checkpoints" / "step_00000002" / "state.safetensors")
    assert torch.equal(stored["model/visual_proj.weight"], found.model.visual_proj.weight)
