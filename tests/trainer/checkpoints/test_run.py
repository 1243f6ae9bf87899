"""Checkpoints of a run: written atomically, restored exactly, and refused by other runs."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.small_run import small_run
from trainer.checkpoints.folder import RunFolder, list_checkpoints, newest_checkpoint
from trainer.checkpoints.run import restore_checkpoint
from trainer.checkpoints.writer import CheckpointWriter
from trainer.config import as_dict, differences
from trainer.distributed.process import Process
from trainer.training.build import Run
from trainer.training.step import update

CPU = Process(device=torch.device("cpu"))


def run_after_one_step(tmp_path: Path, *others: str) -> Run:
    run = small_run(tmp_path / "run", *others)
    update(run, next(iter(run.loader)))
    return run


def save(tmp_path: Path, run: Run, step: int, keep: int = 3) -> Path:
    writer = CheckpointWriter(RunFolder(str(tmp_path), tmp_path), keep, CPU)
    writer.save(step, run, run.loader.state_dict(), as_dict(run.config))
    writer.wait()
    return tmp_path / "checkpoints" / f"step_{step:08d}"


def no_changes(saved: dict[str, object]) -> list[str]:
    return []


def test_generators_and_loader_state_are_restored(tmp_path: Path) -> None:
    run = run_after_one_step(tmp_path)
    path = save(tmp_path, run, 1)

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()  # noqa: NPY002

    expected, loader_state = draw(), run.loader.state_dict()
    draw()
    next(iter(run.loader))
    assert run.loader.state_dict() != loader_state
    assert restore_checkpoint(path, run, CPU, no_changes) == (1, loader_state)
    assert draw() == expected


def test_only_the_newest_checkpoints_are_kept_and_abandoned_drafts_are_removed(tmp_path: Path) -> None:
    run, folder = run_after_one_step(tmp_path), tmp_path / "checkpoints"
    (folder / ".draft_00000007").mkdir(parents=True)
    (folder / ".draft_00000007" / "state.json").write_text("{")
    assert newest_checkpoint(folder) is None
    for step in (1, 2, 10, 3):
        save(tmp_path, run, step, keep=2)
    (folder / "step_00000010.bak").mkdir()
    assert [path.name for path in list_checkpoints(folder)] == ["step_00000003", "step_00000010"]
    assert {path.name for path in folder.glob(".*")} == set()


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    run = run_after_one_step(tmp_path)
    save(tmp_path, run, 4)
    run.model.logit_scale.data.fill_(1.5)
    path = save(tmp_path, run, 4)
    run.model.logit_scale.data.fill_(0.0)
    restore_checkpoint(path, run, CPU, no_changes)
    assert run.model.logit_scale.item() == 1.5


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "rank_00000.json"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    run = run_after_one_step(tmp_path)
    path = save(tmp_path, run, 1)
    (path / name).write_bytes((path / name).read_bytes()[:20])
    with pytest.raises(
        UserError, match=rf"{path}.* (cannot be read|is not valid JSON).*to resume from the checkpoint before it"
    ):
        restore_checkpoint(path, run, CPU, no_changes)


@pytest.mark.parametrize("wrong", [{}, {"random": None}, {"random": {"torch": "!"}}])
def test_a_state_of_a_process_without_its_fields_is_damaged(tmp_path: Path, wrong: dict[str, Any]) -> None:
    run = run_after_one_step(tmp_path)
    path = save(tmp_path, run, 1)
    state = json.loads((path / "rank_00000.json").read_text())
    random = wrong.get("random") and {**state["random"], **wrong["random"]}
    (path / "rank_00000.json").write_text(json.dumps({**state, **wrong, "random": random} if wrong else {}))
    with pytest.raises(UserError, match=r"rank_00000.json is damaged; .*to resume from the checkpoint before it"):
        restore_checkpoint(path, run, CPU, no_changes)


def test_another_format_is_an_error(tmp_path: Path) -> None:
    run = run_after_one_step(tmp_path)
    path = save(tmp_path, run, 1)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        restore_checkpoint(path, run, CPU, no_changes)


def test_tensors_of_another_model_are_an_error_that_names_a_tensor(tmp_path: Path) -> None:
    path = save(tmp_path, run_after_one_step(tmp_path, "model_name=meru"), 1)
    other = run_after_one_step(tmp_path, "model_name=clip")
    with pytest.raises(UserError, match="model_name was 'meru', is 'clip'"):
        restore_checkpoint(path, other, CPU, lambda saved: differences(saved, other.config))
    with pytest.raises(UserError, match=r"does not fit this model: only the checkpoint has curv; restore"):
        restore_checkpoint(path, other, CPU, no_changes)


def test_only_the_first_differences_are_listed(tmp_path: Path) -> None:
    run = run_after_one_step(tmp_path)
    path = save(tmp_path, run, 1)
    with pytest.raises(UserError, match=r"different settings: a; b; c; and 2 more\. Restore these settings"):
        restore_checkpoint(path, run, CPU, lambda saved: ["a", "b", "c", "d", "e"])
