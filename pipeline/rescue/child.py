"""A child process that serves calls to one object, and can be killed at any moment.

It is started with `subprocess` and not `multiprocessing`, which would import the main module of the caller again; so
scripts need no `if __name__ == "__main__"`. The child ends when its parent does.
"""

import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final

from pipeline.config import repository_root

COMMAND: Final = "import sys; sys.path.insert(0, sys.argv[2]); from pipeline.rescue.server import main; main()"
START_S: Final = 600.0
"""Time limit for the start of a child, in which it imports the packages and may fetch models."""


class ProcessDiedError(Exception):
    """The child ended during a call; the message is its exit code or signal."""


class StepTimeoutError(Exception):
    """The child did not finish a call within its time limit and was killed."""


class RemoteError(Exception):
    """An exception of the child, as `TypeName: message`."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message, traceback)
        self.message, self.traceback = message, traceback

    def __str__(self) -> str:
        return self.message


class Child:
    """A child process with the object that `factory`, which must be picklable, returns there.

    It starts at the first call, and again at the first call after its death; the new object has no memory of earlier
    calls.
    """

    def __init__(self, factory: Callable[[], object]) -> None:
        self.factory = pickle.dumps(factory)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process and create the object, unless it runs. Raises like `call`."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", COMMAND, str(theirs.fileno()), str(repository_root())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._connection = Connection(ours.detach())
        try:
            self._request((sys.path, self.factory), START_S)
        except BaseException:  # the process has no object, and would not answer the next call
            self.kill()
            raise

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Return `object.method(*arguments)`; `timeout_s` does not include the start of the process.

        Raises ProcessDiedError, StepTimeoutError, the exceptions that `server.KNOWN` lists, and RemoteError for others.
        """
        self.start()
        return self._request((method, arguments), timeout_s)

    def kill(self) -> None:
        """Kill the process, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._connection.close()

    def _request(self, message: object, timeout_s: float) -> Any:
        assert self._process is not None
        try:
            self._connection.send(message)
            if not self._connection.poll(timeout_s):
                self.kill()
                raise StepTimeoutError(f"no result within {timeout_s:g} s")
            is_done, value = self._connection.recv()
        except (EOFError, OSError):
            code = self._wait()
            raise ProcessDiedError(exit_message(code)) from None
        except BaseException:  # an interrupt: the answer of the child would be taken for that of the next call
            self.kill()
            raise
        if is_done:
            return value
        raise value

    def _wait(self) -> int:
        """Return the exit code of the process, whose connection is closed."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        return code


def exit_message(code: int) -> str:
    """Describe the exit code of a process.

    >>> exit_message(-11), exit_message(1)
    ('killed by SIGSEGV', 'ended with exit code 1')
    """
    try:
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    except ValueError:
        return f"killed by signal {-code}"
