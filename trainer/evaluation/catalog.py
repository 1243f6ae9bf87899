"""The evaluation tasks and the data sets of classification: one file each in data/, which `--help` prints without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainer.evaluation.task import Embedder, TaskOptions, TaskResult

DATA: Final = Path(__file__).with_name("data")


@dataclass(frozen=True, kw_only=True)
class Task:
    """An evaluation task."""

    name: str
    title: str
    files: tuple[str, ...]
    """Paths below the data folder."""
    size: str
    source: str
    license: str
    location: str
    """MODULE:FUNCTION that evaluates a model."""

    def evaluate(self, embedder: "Embedder", root: Path, options: "TaskOptions") -> "TaskResult":
        """Evaluate a model on the data folder.

        Raises MissingFilesError, UnsuitableModelError, and UserError for malformed annotations.
        """
        module, _, function = self.location.partition(":")
        result: TaskResult = getattr(import_module(module), function)(embedder, root, options)
        return result


@dataclass(frozen=True, kw_only=True)
class SetInfo:
    """The size of a set for classification, MERU's prompts (table 8), and where its files are.

    `n_images` counts the test split (MERU, table 6), whose `files` are below DATA/KEY; `train_files` are those of the other
    splits. `names` are those of the classes if the files have none. torchvision downloads `archives`, address -> MD5, of
    `gb` 10^9 bytes together; unpacked in DATA/KEY/`into`, they give DATA/KEY/`folder`.
    """

    key: str
    n_classes: int
    n_images: int
    n_train: int = 0
    n_val: int = 0
    files: str = ""
    train_files: str = ""
    prompts: tuple[str, ...]
    names: tuple[str, ...] = ()
    names_source: str = ""
    wnids: tuple[str, ...] = ()
    archives: Mapping[str, str] = field(default_factory=dict)
    gb: float = 0
    license: str = ""
    folder: str = ""
    into: str = ""


@cache
def set_infos() -> dict[str, SetInfo]:
    """The 20 data sets by key, in the order of the papers' tables."""
    table: dict[str, dict[str, Any]] = json.loads((DATA / "zero_shot.json").read_text(encoding="utf-8"))
    for row in table.values():
        row |= {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return {key: SetInfo(key=key, **row) for key, row in table.items()}


def read_tasks() -> dict[str, Task]:
    """The tasks by name, in the order in which they run."""
    table: dict[str, dict[str, Any]] = json.loads((DATA / "tasks.json").read_text(encoding="utf-8"))
    infos = set_infos().items()
    files_of_sets = {
        "classification": [f"{key}/{info.files}" for key, info in infos],
        "linear_probe": [f"{key}/{info.train_files}" for key, info in infos if info.train_files],
    }
    for name, row in table.items():
        row["files"] = (*files_of_sets.get(name, ()), *row["files"])
    return {name: Task(name=name, **row) for name, row in table.items()}


TASKS: Final[Mapping[str, Task]] = read_tasks()


def describe_tasks() -> str:
    """The tasks with files, size, source and license, as `--help` prints them."""
    lines = []
    for task in TASKS.values():
        lines += [f"  {task.name}: {task.title}", f"      size: {task.size}"]
        lines += [f"      source: {task.source}", f"      license: {task.license}"]
        lines += [] if task.files else ["      files: none"]
        lines += [f"      {'files: ' if i == 0 else '       '}DATA/{file}" for i, file in enumerate(task.files)]
    return "\n".join(lines)
