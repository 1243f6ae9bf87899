"""Run pipeline jobs and training runs in forked processes, which can be killed at any moment."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.forks import CONTEXT

ROOT = Path(__file__).resolve().parents[2]

Main = Callable[[Sequence[str]], int]


def start(main: Main, arguments: Sequence[str], log: Path) -> BaseProcess:
    """Start `main(arguments)` in a new process group. Its output is appended to `log`."""
    process = CONTEXT.Process(target=_run, args=(main, arguments, log))
    process.start()
    return process


def _run(main: Main, arguments: Sequence[str], log: Path) -> None:
    import torch

    os.setpgid(0, 0)
    os.chdir(ROOT)
    torch.set_num_threads(1)
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = main(arguments)
    os._exit(code)


def kill(process: BaseProcess) -> None:
    """Kill a process and its children with SIGKILL."""
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has not created its process group yet
        process.kill()
    process.join()


def run(main: Main, arguments: Sequence[str], log: Path) -> float:
    """Run `main` to its end and return the seconds it took. Raises RuntimeError with the log if it fails."""
    began = time.monotonic()
    process = start(main, arguments, log)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"exit code {process.exitcode}; end of {log}:\n{log.read_text()[-3000:]}")
    return time.monotonic() - began


def run_until(main: Main, arguments: Sequence[str], log: Path, is_reached: Callable[[], bool]) -> bool:
    """Run `main` and kill it as soon as `is_reached` returns true. Returns True if it was killed before its end.

    Raises RuntimeError with the log if it fails by itself.
    """
    process = start(main, arguments, log)
    while process.exitcode is None:
        if is_reached():
            kill(process)
            break
        process.join(0.005)
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"exit code {process.exitcode}; end of {log}:\n{log.read_text()[-3000:]}")
    return process.exitcode != 0
