"""Processes forked from one that has imported torch, spaCy and the other packages, which saves each of them seconds."""

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

CONTEXT: Final = multiprocessing.get_context("forkserver")
"""Its processes inherit no threads of the test process, but the environment, folder and outputs of the server."""
CONTEXT.set_forkserver_preload(["tests.preload"])


def take_over(variables: Mapping[str, str], folder: str | Path, outputs: Sequence[int]) -> None:
    """Give this process an environment, a folder, and file descriptors as standard output and error."""
    for number, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
