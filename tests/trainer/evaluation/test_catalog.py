"""The table of tasks: each has a function and a description, which `--help` prints."""

import json
from dataclasses import asdict
from importlib import import_module

import pytest

from trainer.evaluate import main
from trainer.evaluation.catalog import DATA, TASKS, Task


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_task_is_described_and_its_function_exists(task: Task) -> None:
    module, _, function = task.location.partition(":")
    assert callable(getattr(import_module(module), function))
    assert [key for key, value in asdict(task).items() if not value] == (["files"] if task.name == "words" else [])


def test_the_names_of_tasks_differ() -> None:
    names = json.loads((DATA / "tasks.json").read_text(), object_pairs_hook=lambda pairs: [name for name, _ in pairs])
    assert len(TASKS) == len(names)


def test_the_help_lists_all_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, task in TASKS.items():
        assert f"  {name}: {task.title}" in shown
    assert "DATA/coco/annotations/captions_val2017.json" in shown
    assert "license:" in shown
