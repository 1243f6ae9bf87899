"""A run goes on with another number of processes, and with the same samples in each batch."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forks import replaced
from tests.trainer.small_run import kill_once_saved, run_forked
from trainer.training import loop


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Path]:
    """A folder in which every process writes the keys of its part of each batch."""
    folder, real_step = tmp_path / "keys", loop.start_step
    folder.mkdir()

    def start_step(run: Any, batch: Any, **named: Any) -> Any:
        file = folder / f"{Path(run.config.output).name}-{run.step + 1:02d}-{os.environ.get('RANK', '0')}.json"
        file.write_text(json.dumps(batch.keys))
        return real_step(run, batch, **named)

    with replaced(loop, "start_step", start_step):
        yield folder


def keys_of(folder: Path, name: str, step: int) -> list[str]:
    parts = sorted(folder.glob(f"{name}-{step:02d}-*.json"))
    return [key for part in parts for key in json.loads(part.read_text())]


@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.rest)])
def test_a_run_resumes_with_another_number_of_processes_and_the_same_samples(
    tmp_path: Path, recorded: Path, free_port: int, before: int, after: int
) -> None:
    steps = ("steps=6", "save.every=3")
    assert run_forked(tmp_path / "whole", *steps) == [0]
    kill = kill_once_saved(tmp_path / "run", 3)
    assert set(run_forked(tmp_path / "run", *steps, port=free_port, at=4, faults=[kill] * before)) == {-9}
    for file in recorded.glob("run-*.json"):
        if int(file.name.split("-")[1]) > 3:  # they will be repeated from the checkpoint of step 3
            file.unlink()
    assert run_forked(tmp_path / "run", *steps, port=free_port, faults=[None] * after) == [0] * after
    for step in range(1, 7):
        assert keys_of(recorded, "run", step) == keys_of(recorded, "whole", step), step
