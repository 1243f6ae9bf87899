"""The child process: results and exceptions arrive, deaths and hangs are reported, no process stays behind."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.paths import repository_root
from pipeline.faults import Child, ProcessDiedError, RemoteError, StepTimeoutError
from tests.patience import wait_until


class Worker:
    """The object in the child."""

    def __init__(self, start: str = "") -> None:
        self.calls = 0
        self.fail(start)

    def count(self) -> tuple[int, int]:
        self.calls += 1
        return os.getpid(), self.calls

    def fail(self, kind: str) -> None:
        match kind:
            case "user":
                raise UserError("no such model")
            case "raise":
                raise ZeroDivisionError("one\ntwo")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(600)


@pytest.mark.parametrize(
    ("kind", "error", "message", "survives"),
    [
        ("user", UserError, "no such model", True),
        ("raise", RemoteError, r"ZeroDivisionError: one\\ntwo", True),
        ("kill", ProcessDiedError, "killed by SIGKILL", False),
        ("exit", ProcessDiedError, "ended with exit code 3", False),
        ("hang", StepTimeoutError, "no result within 0.5 s", False),
    ],
)
def test_a_failure_is_reported_and_the_child_is_started_again_if_it_is_gone(
    kind: str, error: type[Exception], message: str, survives: bool
) -> None:
    with Child(Worker) as child:
        first = child.call("count", timeout_s=240)
        with pytest.raises(error, match=message):
            child.call("fail", kind, timeout_s=0.5 if kind == "hang" else 240)
        pid, calls = child.call("count", timeout_s=240)
    assert (pid == first[0]) == survives
    assert calls == (2 if survives else 1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_exception_of_the_factory_is_raised_and_the_next_call_starts_another_child() -> None:
    with Child(partial(Worker, "user")) as child:
        for _ in range(2):
            with pytest.raises(UserError, match="no such model"):
                child.call("count", timeout_s=240)


SCRIPT = """
import os, sys, time
from pipeline.faults import Child
from tests.pipeline.run.rescue.test_child import Worker
child = Child(Worker)
print(child.call("count", timeout_s=240)[0], flush=True)
child.call("fail", "hang", timeout_s=600)
"""


def test_the_child_ends_with_its_parent_even_in_the_middle_of_a_call() -> None:
    """A script without `if __name__ == "__main__"` works too."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, cwd=repository_root()) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, signal.SIGSTOP)  # as if it were slow
        parent.kill()
    wait_until(lambda: not psutil.pid_exists(pid))
