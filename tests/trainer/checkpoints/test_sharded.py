"""Sharded checkpoints: each rank writes its shards, and any number of ranks resumes to the bit."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hypergrit_common.errors import UserError
from tests.forks import replaced
from tests.trainer.distributed.test_precision import join_group, start
from tests.trainer.small_run import (
    kill,
    kill_once_saved,
    log_path,
    run,
    run_forked,
    small_config,
    small_run,
    write_data,
)
from trainer.checkpoints.folder import RunFolder, list_checkpoints
from trainer.checkpoints.run import restore_checkpoint, tensors_of
from trainer.checkpoints.writer import CheckpointWriter, DraftWriter
from trainer.config import TrainConfig, as_dict
from trainer.training.build import build
from trainer.training.step import update

FSDP = ("parallel.strategy=fsdp", "optim.ema=0.9", "evaluation.every=0")
SHARDED = (*FSDP, "save.sharded=true")
PARTS = [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)]
SHORT = ("steps=6", "save.every=2")


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model" / "model.safetensors")


def files(output: Path, step: int) -> set[str]:
    return {path.name for path in (output / "checkpoints" / f"step_{step:08d}").iterdir()}


def save_both(rank: int, config: TrainConfig, folder: Path) -> None:
    """Do a step in two processes, and write its checkpoint as one file and in shards."""
    with join_group(rank) as process:
        found = build(config, process)
        update(found, next(iter(found.loader)))
        for name in ("whole", "sharded"):
            output = RunFolder(str(folder / name), folder / name)
            writer = CheckpointWriter(output, 3, process, sharded=name == "sharded")
            writer.save(1, found, found.loader.state_dict(), as_dict(config))
            writer.wait()


@pytest.mark.parametrize("group", [2, pytest.param(1, marks=pytest.mark.rest)])
def test_a_single_process_restores_the_tensors_of_both_kinds_and_takes_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, group: int
) -> None:
    """A group of one holds all weights (HSDP): its copies are written once."""
    monkeypatch.setenv("TEST_PORT", str(free_port))
    write_data(tmp_path / "run")
    keys = (*FSDP, "optim.warmup_steps=0", f"parallel.shard_group={group}")
    start(save_both, small_config(tmp_path / "run", *keys), tmp_path)
    states = []
    for name in ("whole", "sharded"):
        found = small_run(tmp_path / "run", *FSDP, "optim.warmup_steps=0")
        path = tmp_path / name / "checkpoints" / "step_00000001"
        found.step, loader_state = restore_checkpoint(path, found, found.process, lambda saved: [])
        found.loader.load_state_dict(loader_state)
        states.append({key: value.clone() for key, value in tensors_of(found).items()})
        update(found, next(iter(found.loader)))
        states.append({key: value.clone() for key, value in tensors_of(found).items()})
    restored, after, restored_of_shards, after_of_shards = states
    assert sum(key.startswith("optimizer/exp_avg/") for key in restored) > 10
    assert all(torch.equal(value, restored_of_shards[key]) for key, value in restored.items())
    assert all(torch.equal(value, after_of_shards[key]) for key, value in after.items())
    assert not torch.equal(after["model/visual_proj.weight"], restored["model/visual_proj.weight"])
    beside = {"state.json", "rank_00000.json", "rank_00001.json"}
    assert files(tmp_path / "whole", 1) == beside | {"state.safetensors"}
    assert files(tmp_path / "sharded", 1) == beside | set(PARTS)
    sizes = sorted((tmp_path / "sharded/checkpoints/step_00000001" / name).stat().st_size for name in PARTS)
    assert sizes[1] < 1.2 * sizes[0]
    (tmp_path / "sharded/checkpoints/step_00000001" / PARTS[1]).unlink()
    with pytest.raises(UserError, match=f"step_00000001 lacks its file {PARTS[1]}"):
        restore_checkpoint(path, found, found.process, lambda saved: [])


@pytest.mark.rest
@pytest.mark.parametrize(("ranks", "group"), [(1, 2), (2, 2), (2, 1)])
def test_a_run_resumes_with_as_many_or_fewer_processes_as_from_a_checkpoint_of_one_file(
    tmp_path: Path, free_port: int, ranks: int, group: int
) -> None:
    for name, keys in (("whole", FSDP), ("sharded", SHARDED)):
        output, keys = tmp_path / name, (*keys, *SHORT, f"parallel.shard_group={group}")
        assert run_forked(output, *keys, port=free_port, at=4, faults=[kill_once_saved(output, 2)] * 2) == [-9, -9]
        keys = keys if ranks > 1 else (*SHARDED, *SHORT)
        assert run_forked(output, *keys, port=free_port, faults=[None] * ranks) == [0] * ranks
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "sharded")
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


@contextmanager
def failing(fault: Callable[[], None], ranks: str) -> Iterator[None]:
    """Call `fault` in some ranks when they have written their parts of the second checkpoint."""
    real = DraftWriter.write_data

    def write_data(self: DraftWriter, *arguments: Any) -> Any:
        found = real(self, *arguments)
        if os.environ["RANK"] in ranks and self.snapshot.step == 4:
            fault()
        return found

    with replaced(DraftWriter, "write_data", write_data):
        yield


@pytest.mark.parametrize(("ranks", "codes"), [("01", [-9, -9]), pytest.param("1", [2, -9], marks=pytest.mark.rest)])
def test_a_kill_of_a_process_while_it_writes_loses_nothing(
    tmp_path: Path, free_port: int, ranks: str, codes: list[int]
) -> None:
    output = tmp_path / "run"
    with failing(kill, ranks):
        assert run_forked(output, *SHARDED, *SHORT, port=free_port, faults=[None, None]) == codes
    assert [path.name for path in list_checkpoints(output / "checkpoints")] == ["step_00000002"]
    assert (output / "checkpoints" / ".draft_00000004").is_dir() == (ranks == "01")  # a process that lives removes it
    assert run(output, *SHARDED, *SHORT) == 0
    assert not list((output / "checkpoints").glob(".draft_*"))
    assert "state.safetensors" in files(output, 6)  # a single process holds everything


@pytest.mark.rest
def test_an_error_of_one_process_ends_all_with_its_cause_and_leaves_no_draft(tmp_path: Path, free_port: int) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    output = tmp_path / "run"
    with failing(fail, "1"):
        assert run_forked(output, *SHARDED, *SHORT, port=free_port, faults=[None, None]) == [2, 2]
    assert "step 4 cannot be written" in log_path(output).read_text()
    assert "No space left on device" in log_path(output).read_text()
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step_00000002"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["save.sharded=true"], "needs parallel.strategy=fsdp"),
        ([*SHARDED, "output=s3://bucket/run"], r"cannot write to the URL output=s3://bucket/run"),
    ],
)
def test_sharded_checkpoints_need_fsdp_and_a_shared_folder(tmp_path: Path, keys: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small_config(tmp_path / "run", *keys)
