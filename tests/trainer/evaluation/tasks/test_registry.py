"""Descriptions of tasks, as `--help` prints them, equal the tasks, and are read without torch."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from trainer.evaluation.tasks import registry


@pytest.mark.parametrize("name", registry.NAMES)
def test_the_description_equals_the_task(name: str) -> None:
    task = registry.load_task(name)
    assert task.name == name
    for key, value in asdict(registry.read_description(name)).items():
        assert getattr(task, key) == value
        assert value or (key, name) == ("files", "words")


def test_the_help_lists_all_tasks_without_importing_torch() -> None:
    code = "import sys; from trainer.evaluate import main; main(['--help']); assert 'torch' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in registry.NAMES:
        assert f"  {name}: {registry.read_description(name).title}" in shown
    assert "DATA/coco/annotations/captions_val2017.json" in shown
    assert "license:" in shown


@pytest.mark.parametrize(
    ("source", "message"),
    [("x = 1\n", "has no statement `TASK = Task"), ("TASK = Task(name=str(1))\n", "argument name .* is not a literal")],
)
def test_a_module_without_a_literal_task_is_an_error(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong.py").write_text(source)
    monkeypatch.setattr(registry, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=message):
        registry.read_description("wrong")
