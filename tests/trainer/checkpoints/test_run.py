"""Checkpoints of a run: whole or not at all, and only for the run they are of."""

import json
import random
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from common.errors import UserError
from tests.trainer.memory_loader import MemoryLoader
from tests.trainer.small_run import small_config
from trainer import build, loop
from trainer.checkpoints.run import checkpoints, newest, restore, save
from trainer.config import as_dict
from trainer.distributed.process import Process

HERE = Process(device=torch.device("cpu"))


def small(tmp_path: Path, *others: str) -> build.Run:
    with patch.object(build, "Loader", MemoryLoader):
        run = build.build(small_config(tmp_path / "run", *others), HERE)
    loop.update(run, next(iter(run.loader)))
    return run


def save_at(tmp_path: Path, run: build.Run, step: int, keep: int = 3) -> Path:
    return save(tmp_path, step, run, run.loader.state_dict(), as_dict(run.config), HERE, keep)


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    run = small(tmp_path)
    path = save_at(tmp_path, run, 1)

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()  # noqa: NPY002

    expected = draw()
    draw()
    step, position = restore(path, run, run.config, HERE)
    assert (step, position) == (1, {"position": 1})
    assert draw() == expected


def test_only_the_newest_stay_and_what_a_killed_run_left_goes(tmp_path: Path) -> None:
    run = small(tmp_path)
    (tmp_path / ".draft_00000007").mkdir()
    (tmp_path / ".draft_00000007" / "state.json").write_text("{")
    assert newest(tmp_path) is None
    for step in (1, 2, 10, 3):
        save_at(tmp_path, run, step, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step_00000003", "step_00000010"]
    assert {path.name for path in tmp_path.glob(".*")} == set()


def test_a_step_saved_again_replaces_itself(tmp_path: Path) -> None:
    run = small(tmp_path)
    save_at(tmp_path, run, 4)
    run.model.logit_scale.data.fill_(1.5)
    path = save_at(tmp_path, run, 4)
    run.model.logit_scale.data.fill_(0.0)
    restore(path, run, run.config, HERE)
    assert run.model.logit_scale.item() == 1.5


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "rank_00000.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    run = small(tmp_path)
    path = save_at(tmp_path, run, 1)
    (path / name).write_bytes((path / name).read_bytes()[:20])
    with pytest.raises(
        UserError, match=rf"{path}.* (cannot be read|is not valid JSON).*go on from the checkpoint before it"
    ):
        restore(path, run, run.config, HERE)


def test_another_format_is_refused(tmp_path: Path) -> None:
    run = small(tmp_path)
    path = save_at(tmp_path, run, 1)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        restore(path, run, run.config, HERE)


def test_tensors_of_another_model_are_named(tmp_path: Path) -> None:
    path = save_at(tmp_path, small(tmp_path, "model_name=meru"), 1)
    other = small(tmp_path, "model_name=clip")
    with pytest.raises(UserError, match="model_name was 'meru', is 'clip'"):
        restore(path, other, other.config, HERE)
    with pytest.raises(UserError, match="curv is in one of them alone"):
        restore(path, other, other.config, HERE, anyway=True)
