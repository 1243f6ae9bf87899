"""Options of a run that speed it up or keep more of it: compilation, garbage collection, checkpoints and metrics."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.small_run import run, small_config, small_run
from trainer.checkpoints.folder import list_checkpoints
from trainer.training import loop
from trainer.training.accumulate import tower_blocks


def test_python_collects_garbage_in_evaluations_and_not_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, bool]] = []
    real = loop.evaluate

    def evaluate(*arguments: Any) -> Any:
        found.append(("evaluation", gc.isenabled()))
        return real(*arguments)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    keys = ("steps=3", "evaluation.every=1")
    assert run(tmp_path / "run", *keys, at=2, fault=lambda: found.append(("step", gc.isenabled()))) == 0
    assert ("step", False) in found
    assert found.count(("evaluation", True)) == 3
    assert gc.isenabled()


def test_every_third_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    keys = ("steps=7", "save.every=1", "save.keep=1", "evaluation.every=0")
    assert run(tmp_path / "run", *keys, "save.keep_every=3") == 0
    names = [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert names == [f"step_0000000{step}" for step in (3, 6, 7)]
    with pytest.raises(UserError, match=r"keep_every=3 is not a multiple of save.every=2"):
        small_config(tmp_path / "run", "save.every=2", "save.keep_every=3")


@pytest.mark.parametrize("strategy", ["blocks", "towers"])
def test_blocks_or_towers_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    compiled: list[Any] = []

    def record(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled.append(getattr(function, "__self__", None))
        return function

    monkeypatch.setattr(torch, "compile", record)
    keys = ("compile=true", f"compile_strategy={strategy}")
    model = small_run(tmp_path / "run", *keys).model
    parts = tower_blocks(model) if strategy == "blocks" else [model.visual, model.textual]
    assert compiled == [*parts, model, model]  # the last: pixels and losses
    with pytest.raises(UserError, match="use compile_strategy=blocks"):
        small_config(tmp_path / "run", "compile_strategy=towers", "parallel.strategy=fsdp")
