"""Steps in forked processes of this one, which starts no threads: disturbed at an I/O call, or asked what they find."""

import builtins
import errno
import io
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb  # noqa: F401  # what the steps import is imported before they are forked, since importing takes time
import pandas  # noqa: F401
import torchvision  # noqa: F401
from py3langid.langid import MODEL_FILE, LanguageIdentifier

import hypergrit_common.lease as lease
import pipeline.commands.dry_run
import pipeline.commands.explore
import pipeline.commands.export
import pipeline.commands.retry
import pipeline.commands.rewrite
import pipeline.commands.takedown
import pipeline.commands.verify
import pipeline.explore.rows
import pipeline.explore.site
import pipeline.output.lock as lock
import pipeline.run.job
import pipeline.run.loop as loop
import pipeline.stages.download.stage
import pipeline.stages.ground.stage
import pipeline.stages.score.stage  # noqa: F401
from hypergrit.__main__ import main as hypergrit
from hypergrit_common import processes
from pipeline.run.steps import Steps
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.lexicon import words
from pipeline.stages.parse.stage import Parse
from pipeline.stages.stage import TableFunction
from tests.pipeline.here import compute_here
from tests.pipeline.output.write.crashes import KILLED

LIMIT_S, BLOCKED_S = 240.0, 15.0
"""Longest time of a step; time after which a process that stands still goes on, since the other one may wait for it."""
MACHINES = ("aaaaaaaa", "bbbbbbbb")


class ParsedOnce:
    """Steps whose parser and words were loaded by the process from which theirs is forked."""

    def __init__(self) -> None:
        load = LanguageIdentifier.from_model_file = cache(LanguageIdentifier.from_model_file)
        load(MODEL_FILE, norm_probs=True)
        words()
        self.parse, self.make_stage = Parse(ParseConfig()), Steps.make_stage
        ours = self

        def make_stage(steps: Steps, name: str) -> TableFunction:
            return ours.parse if name == "parse" else ours.make_stage(steps, name)

        Steps.make_stage = make_stage  # type: ignore[method-assign]


class Disturbance:
    """Something that happens at an I/O call of this process, and for `full` and `broken` at all that write after it."""

    def __init__(self, kind: str, target: int, folder: Path) -> None:
        self.kind, self.target, self.folder, self.n = kind, target, f"{folder}/", -1

    def install(self) -> None:
        for name in ("open", "fsync", "replace", "rename", "remove", "unlink", "mkdir", "rmdir", "stat", "scandir"):
            setattr(os, name, self.wrap(name, getattr(os, name)))
        opened, disturbance = open, self

        class RawFile(io.FileIO):
            def write(self, data: Any) -> int:
                return int(disturbance.call("write", super().write, (data,), {}))

        def open_counted(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not disturbance.is_ours(path) or mode[0] not in "wax":
                return opened(path, mode, *arguments, **options)
            disturbance.count("create")
            return RawFile(path, "wb") if options.get("buffering") == 0 else opened(path, mode, *arguments, **options)

        builtins.open = open_counted

    def is_ours(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.folder)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if name != "fsync" and not (arguments and self.is_ours(arguments[0])):
                return function(*arguments, **options)
            writes = name in ("fsync", "replace", "rename", "mkdir") or (name == "open" and arguments[1] & os.O_CREAT)
            return self.call("write" if writes else name, function, arguments, options)

        return wrapped

    def call(self, name: str, function: Callable[..., Any], arguments: Any, options: Any) -> Any:
        is_target = self.count(name)
        if is_target and self.kind == "half" and isinstance(arguments[0], bytes | memoryview):
            return function(bytes(arguments[0])[: len(arguments[0]) // 2])
        result = function(*arguments, **options)
        if is_target and self.kind == "kill_after":
            os._exit(KILLED)
        return result

    def count(self, name: str) -> bool:
        self.n += 1
        is_target = self.n == self.target
        if is_target and self.kind == "kill":
            os._exit(KILLED)
        if is_target and self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.n >= self.target:
            self.fail(name)
        return is_target

    def fail(self, name: str) -> None:
        """Raise the error of a call at the target or after it, if there is one."""
        number = {"full": errno.ENOSPC, "broken": errno.EIO}.get(self.kind)
        if number is not None and name in ("write", "create"):
            raise OSError(number, os.strerror(number))


@dataclass
class Running:
    """A forked process with its log."""

    pid: int
    log: Path
    status: int | None = None

    def wait(self, seconds: float, stops: bool = False) -> bool:
        """Wait for its end, or for its stop; return False if neither comes."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | (os.WUNTRACED if stops else 0))
            if pid and os.WIFSTOPPED(status):
                return True
            if pid:
                self.status = status
            elif time.monotonic() > deadline:
                return False
            else:
                time.sleep(0.003)
        return True

    @property
    def code(self) -> int:
        """The exit code; that of a killed process is KILLED."""
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    def end(self) -> int:
        """Wait for the end of the process, which may stand still, and return the exit code."""
        if self.status is None:
            os.kill(self.pid, signal.SIGCONT)
            if not self.wait(LIMIT_S):
                os.kill(self.pid, signal.SIGKILL)
                self.wait(10)
                raise AssertionError(f"a step did not end within {LIMIT_S:.0f} s: {self.log.read_text()[-2000:]}")
        return self.code


def start(arguments: Sequence[str], folder: Path, log: Path, machine: int, disturbance: Disturbance | None) -> Running:
    """Run a verb in a forked process on one of two machines."""
    pid = os.fork()
    if pid:
        return Running(pid, log)
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
        os.environ |= {"TMPDIR": str(folder / "tmp" / str(machine)), "XDG_CACHE_HOME": str(folder / "cache")}
        tempfile.tempdir = None
        processes.machine = lambda: MACHINES[machine]  # type: ignore[assignment]
        lease.WATCH_S, lease.EXPIRY_S, lease.POLL_S = 0.05, 0.1, 0.02  # type: ignore[misc]
        lock.SETTLE_S = 0.02  # type: ignore[misc]
        loop.compute_local = compute_here
        if disturbance is not None:
            disturbance.install()
        code = hypergrit(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def ask(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked process. Raises AssertionError with its traceback."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            answer = pickle.dumps(function())
        except BaseException:
            answer = pickle.dumps(Raised(traceback.format_exc()))
        with os.fdopen(writer, "wb") as file:
            file.write(answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    result = pickle.loads(answer)
    if isinstance(result, Raised):
        raise AssertionError(result.text)
    return result


@dataclass
class Raised:
    """The traceback of an exception."""

    text: str
