"""The evaluation tasks by name. Their descriptions are read without importing the tasks, and so without torch."""

import ast
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainer.evaluation.tasks.base import Task

FOLDER: Final = Path(__file__).resolve().parent
NAMES: Final = (
    *("classification", "retrieval", "hierarchical", "vlchecklist", "sugarcrepe", "vg_attribution", "vg_relation"),
    *("hierarcaps", "detection", "linear_probe"),
    *("traversal", "interpolation", "norms", "horopca", "cosne", "factors", "words", "syntax_edges", "order"),
)
"""Names of the tasks, and of their modules in this folder, in the order in which they run."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The literal fields of a `Task`."""

    name: str
    title: str
    files: tuple[str, ...]
    size: str
    source: str
    license: str


@cache
def read_description(name: str) -> Description:
    """Read the literal arguments of `TASK = Task(...)` in the source of a task.

    Raises ValueError, naming the file, if there is no such statement or an argument is not a literal.
    """
    path = FOLDER / f"{name}.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == "TASK" for target in targets):
            return Description(**literal_arguments(node.value, path))
    raise ValueError(f"{path} has no statement `TASK = Task(...)`; add it")


def literal_arguments(call: ast.Call, path: Path) -> dict[str, Any]:
    """The keyword arguments of a call without `evaluate`. Raises ValueError for one that is not a literal."""
    found = {}
    for argument in call.keywords:
        if argument.arg is None or argument.arg == "evaluate":
            continue
        try:
            found[argument.arg] = ast.literal_eval(argument.value)
        except ValueError as error:
            raise ValueError(f"{path}: the argument {argument.arg} of Task is not a literal; write it out") from error
    return found


def load_task(name: str) -> "Task":
    """Import a task."""
    task: Task = import_module(f"trainer.evaluation.tasks.{name}").TASK
    return task


def describe_tasks() -> str:
    """The tasks with files, size, source and license, as `--help` prints them."""
    lines = []
    for name in NAMES:
        task = read_description(name)
        lines += [f"  {name}: {task.title}", f"      size: {task.size}"]
        lines += [f"      source: {task.source}", f"      license: {task.license}"]
        lines += [] if task.files else ["      files: none"]
        lines += [f"      {'files: ' if i == 0 else '       '}DATA/{file}" for i, file in enumerate(task.files)]
    return "\n".join(lines)
