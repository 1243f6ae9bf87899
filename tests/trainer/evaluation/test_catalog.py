"""The table of tasks: each has a function and a description, which `--help` prints without torch."""

import subprocess
import sys
from dataclasses import asdict
from importlib import import_module

import pytest

from trainer.evaluation.catalog import LIST, TASKS, Task


@pytest.mark.parametrize("task", LIST, ids=lambda task: task.name)
def test_a_task_is_described_and_its_function_exists(task: Task) -> None:
    module, _, function = task.location.partition(":")
    assert callable(getattr(import_module(module), function))
    assert [key for key, value in asdict(task).items() if not value] == (["files"] if task.name == "words" else [])


def test_the_names_of_tasks_differ() -> None:
    assert len(TASKS) == len(LIST)


def test_the_help_lists_all_tasks_without_importing_torch() -> None:
    code = "import sys; from trainer.evaluate import main; main(['--help']); assert 'torch' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name, task in TASKS.items():
        assert f"  {name}: {task.title}" in shown
    assert "DATA/coco/annotations/captions_val2017.json" in shown
    assert "license:" in shown
