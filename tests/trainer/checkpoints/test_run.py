"""Checkpoints of a run: written atomically, restored exactly, and refused by other runs."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hypergrit_common.devices import THREADS, limit_threads
from hypergrit_common.errors import UserError
from tests.trainer.small_run import small_run
from trainer.checkpoints.folder import RunFolder, list_checkpoints, newest_checkpoint
from trainer.checkpoints.run import restore_checkpoint
from trainer.checkpoints.writer import CheckpointWriter
from trainer.config import as_dict, differences
from trainer.distributed.process import Process
from trainer.training.build import Training
from trainer.training.step import update

CPU = Process(device=torch.device("cpu"))


class Saved(NamedTuple):
    """A run after one step, and its checkpoint."""

    run: Training
    path: Path

    def restore(
        self, differences: Callable[[dict[str, Any]], list[str]] = lambda saved: []
    ) -> tuple[int, dict[str, Any]]:
        return restore_checkpoint(self.path, self.run, CPU, differences)


def save(tmp_path: Path, run: Training, step: int, keep: int = 3) -> Path:
    writer = CheckpointWriter(RunFolder(str(tmp_path), tmp_path), keep, CPU)
    writer.save(step, run, run.loader.state_dict(), as_dict(run.config))
    writer.wait()
    return tmp_path / "checkpoints" / f"step_{step:08d}"


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    run = small_run(tmp_path / "run")
    update(run, next(iter(run.loader)))
    return Saved(run, save(tmp_path, run, 1))


def test_generators_and_loader_state_are_restored(saved: Saved) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()  # noqa: NPY002

    expected, loader_state = draw(), saved.run.loader.state_dict()
    draw()
    next(iter(saved.run.loader))
    assert saved.run.loader.state_dict() != loader_state
    assert saved.restore() == (1, loader_state)
    assert draw() == expected


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with three threads, of whose number the user has said nothing."""
    before = torch.get_num_threads()
    monkeypatch.delenv(THREADS, raising=False)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_a_small_model_has_one_thread_by_default_and_a_resumed_run_those_of_its_checkpoint(
    threads: None, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch.get_num_threads() == 1  # `saved` is a run of a small model
    torch.set_num_threads(2)
    path = save(tmp_path, saved.run, 2)
    for given, expected in (("", 2), ("3", 3)):
        torch.set_num_threads(3)
        monkeypatch.setenv(THREADS, given) if given else monkeypatch.delenv(THREADS, raising=False)
        restore_checkpoint(path, saved.run, CPU, lambda saved: [])
        assert torch.get_num_threads() == expected
        limit_threads(saved.run.model, CPU.device)
        assert torch.get_num_threads() == (expected if given else 1)


def test_only_the_newest_checkpoints_are_kept_and_abandoned_drafts_are_removed(tmp_path: Path) -> None:
    run, folder = small_run(tmp_path / "run"), tmp_path / "checkpoints"
    (folder / ".draft_00000007").mkdir(parents=True)
    (folder / ".draft_00000007" / "state.json").write_text("{")
    assert newest_checkpoint(folder) is None
    for step in (1, 2, 10, 3):
        save(tmp_path, run, step, keep=2)
    (folder / "step_00000010.bak").mkdir()
    assert [path.name for path in list_checkpoints(folder)] == ["step_00000003", "step_00000010"]
    assert {path.name for path in folder.glob(".*")} == set()


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path, saved: Saved) -> None:
    saved.run.model.logit_scale.data.fill_(1.5)
    save(tmp_path, saved.run, 1)
    saved.run.model.logit_scale.data.fill_(0.0)
    saved.restore()
    assert saved.run.model.logit_scale.item() == 1.5


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "rank_00000.json"])
def test_a_damaged_file_is_an_error_that_names_it(saved: Saved, name: str) -> None:
    (saved.path / name).write_bytes((saved.path / name).read_bytes()[:20])
    with pytest.raises(
        UserError, match=rf"{saved.path}.* (cannot be read|is not valid JSON).*to resume from the checkpoint before it"
    ):
        saved.restore()


@pytest.mark.parametrize("wrong", [{}, {"random": None}, {"random": {"torch": "!"}}])
def test_a_state_of_a_process_without_its_fields_is_damaged(saved: Saved, wrong: dict[str, Any]) -> None:
    path = saved.path / "rank_00000.json"
    state = json.loads(path.read_text())
    random = wrong.get("random") and {**state["random"], **wrong["random"]}
    path.write_text(json.dumps({**state, **wrong, "random": random} if wrong else {}))
    with pytest.raises(UserError, match=r"rank_00000.json is damaged.*to resume from the checkpoint before it"):
        saved.restore()


WRONG = [
    ("state.json", entry, value)
    for entry, value in (("config", []), ("config", None), ("step", "x"), ("step", -5), ("ranks", None), ("scaler", 5),
                         ("files", [5]), ("files", "abc"), ("threads", 0), ("threads", 10**6), ("threads", True))
] + [("rank_00000.json", "loader", value)
     for value in (5, {}, {"data": "x", "counts": {}, "place": -1}, {"data": "x", "counts": 5, "place": 1})]  # fmt: skip


@pytest.mark.parametrize(("name", "entry", "value"), WRONG)
def test_an_entry_of_another_type_is_damage_of_its_file(saved: Saved, name: str, entry: str, value: Any) -> None:
    path = saved.path / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: value}))
    with pytest.raises(UserError, match=rf"{name} is damaged \(\w+ is '.*to resume from the checkpoint before it"):
        saved.restore()


def test_another_format_is_an_error(saved: Saved) -> None:
    state = json.loads((saved.path / "state.json").read_text())
    (saved.path / "state.json").write_text(json.dumps(state | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        saved.restore()


def test_tensors_of_another_model_are_an_error_that_names_a_tensor(tmp_path: Path, saved: Saved) -> None:
    other = Saved(small_run(tmp_path / "run", "model_name=clip"), saved.path)
    with pytest.raises(UserError, match="model_name was 'hycoclip', is 'clip'"):
        other.restore(lambda saved: differences(saved, other.run.config))
    with pytest.raises(UserError, match=r"does not fit this model: only the checkpoint has curv; restore"):
        other.restore()


def test_only_the_first_differences_are_listed(saved: Saved) -> None:
    with pytest.raises(UserError, match=r"different settings: a; b; c; and 2 more\. Restore these settings"):
        saved.restore(lambda _: ["a", "b", "c", "d", "e"])
