"""Processes forked from one that has imported all packages, which saves each of them seconds."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import cloudpickle

CONTEXT: Final = multiprocessing.get_context("forkserver")
"""Its processes inherit no threads of the test process, but the environment, folder and outputs of the server."""
CONTEXT.set_forkserver_preload(["tests.preload"])

REPLACED: Final[list[tuple[Any, str, Any]]] = []
"""What `replaced` replaces at present."""


@contextmanager
def replaced(target: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute in this process and in those that `start_process` starts meanwhile."""
    REPLACED.append((target, name, value))
    try:
        with patch.object(target, name, value):
            yield
    finally:
        REPLACED.pop()


def start_process(work: Callable[[], object], log: Path) -> ForkServerProcess:
    """Start a process that calls `work`, a closure too, in the environment and folder of this one; its stderr goes to `log`."""
    content = cloudpickle.dumps((work, REPLACED))
    process = CONTEXT.Process(target=_call, args=(content, dict(os.environ), os.getcwd(), str(log)))
    process.start()
    return process


def _call(content: bytes, variables: Mapping[str, str], folder: str, log: str) -> None:
    take_over(
        variables, folder, [os.open(os.devnull, os.O_WRONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)]
    )
    work, replacements = cloudpickle.loads(content)
    for target, name, value in replacements:
        setattr(target, name, value)
    work()


def take_over(variables: Mapping[str, str], folder: str | Path, outputs: Sequence[int]) -> None:
    """Give this process an environment, a folder, and file descriptors as standard output and error."""
    for number, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
