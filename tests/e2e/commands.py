"""The commands of the checks: a new name of a command is a change of one line here.

`run` starts a command as `python -m` does, in a forked process (tests/forks.py). `run_alone` is an ordinary process.
"""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pipeline.run import loop
from tests.forks import CONTEXT, take_over
from tests.patience import COMMAND_S
from tests.pipeline.here import compute_here

ROOT: Final = Path(__file__).resolve().parents[2]

COMMANDS: Final = MappingProxyType(
    {
        "job": ("pipeline/grit.py",),
        "rewrite": ("-m", "hypergrit", "rewrite"),
        "retry": ("pipeline/grit.py", "retry=true"),
        "takedown": ("-m", "hypergrit", "takedown"),
        "verify": ("-m", "hypergrit", "verify"),
        "explore": ("-m", "hypergrit", "explore"),
        "quality": ("-m", "hypergrit", "quality"),
        "demo": ("-m", "demo.run"),
    }
)
"""Arguments of the interpreter for each command."""

Done = subprocess.CompletedProcess[str]


def run(verb: str, *arguments: str | Path) -> Done:
    """Run a command to its end in a forked process, whatever its exit code."""
    words = argv(verb, *arguments)[1:]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = CONTEXT.Process(target=run_here, args=(words, environment(), str(out), str(err)))
        process.start()
        process.join(280)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = -1 if process.exitcode is None else process.exitcode
        return Done(words, code, out.read_text("utf-8", "replace"), err.read_text("utf-8", "replace"))


def run_here(words: list[str], variables: dict[str, str], out: str, err: str) -> None:
    """Run the command in this process, as the interpreter does with these arguments; its output goes to two files.

    Its only worker, if it has one, is this process too: another one would import everything again.
    """
    take_over(variables, ROOT, [os.open(path, os.O_WRONLY | os.O_CREAT) for path in (out, err)])
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    loop.compute_local = compute_here
    code = 0
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def run_alone(verb: str, *arguments: str | Path, cwd: Path = ROOT) -> Done:
    """Run a command to its end in a process of its own, whatever its exit code."""
    return subprocess.run(
        argv(verb, *arguments),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


def succeed(verb: str, *arguments: str | Path) -> Done:
    """Run a command that must end with exit code 0."""
    done = run(verb, *arguments)
    assert done.returncode == 0, f"{verb} ended with {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    return done


def kill_when(is_reached: Callable[[], bool], verb: str, *arguments: str | Path) -> int:
    """Start a command, kill it and its children with SIGKILL once `is_reached`, and return its exit code."""
    with subprocess.Popen(
        argv(verb, *arguments),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        while process.poll() is None and not is_reached():
            try:
                process.wait(0.002)
            except subprocess.TimeoutExpired:
                continue
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def argv(verb: str, *arguments: str | Path) -> list[str]:
    """Return the command line of a command."""
    prefix = [str(ROOT / part) if part.endswith(".py") else part for part in COMMANDS[verb]]
    return [sys.executable, *prefix, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return the environment of the commands: this checkout, one thread, and no proxy of the machine."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
