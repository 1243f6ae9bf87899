"""Faulty rows: the errors that they cause, how they are found, and child processes that can die of them."""

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import pyarrow as pa

from hypergrit_common.cli import notify, set_up_logging
from hypergrit_common.errors import UserError, is_machine_error
from hypergrit_common.paths import repository_root
from hypergrit_common.processes import end_with_parent, status_text
from hypergrit_common.text import redact
from schemas.status import INTERNAL_ERROR
from schemas.table import Drop, drop_rows, kept_indices

MAX_DETAIL: Final = 300
MAX_TRACEBACK: Final = 8000


class ShardError(Exception):
    """The failure of one shard for a known reason, such as an input file that has changed; other shards may succeed."""


@contextmanager
def shard_errors() -> Iterator[None]:
    """Convert a UserError, which ends the job, to a ShardError."""
    try:
        yield
    except UserError as error:
        raise ShardError(str(error)) from error


class TooManyFaultsError(Exception):
    """More rows failed than `max_internal_errors` allows; the message holds the first traceback."""

    def __init__(self, message: str, faults: Sequence["Fault"] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class BrokenProcessError(Exception):
    """An error after which the process cannot compute anything: it has to end, and others take over its work."""


@dataclass(frozen=True)
class Fault:
    """A row that was dropped because a stage raised, crashed, hung or ran out of memory on it."""

    key: str
    stage: str
    detail: str
    traceback: str = ""

    @property
    def drop(self) -> Drop:
        """The drop of the row."""
        return Drop(INTERNAL_ERROR, self.detail)


def is_fault(error: BaseException) -> bool:
    """Return True if a row can be the cause of an exception, and others need not be affected.

    A lack of open files, memory or disk space is not the fault of a row, except a MemoryError, which one can cause.
    Rust extensions, such as tokenizers, raise panics that are not subclasses of Exception.
    """
    meant = (UserError, ShardError, TooManyFaultsError, BrokenProcessError, KeyboardInterrupt, SystemExit)
    return not (isinstance(error, (*meant, GeneratorExit)) or is_machine_error(error))


def describe(error: BaseException) -> str:
    """Return `TypeName: message` in one line of bounded length, with control characters escaped.

    The message alone of a ShardError, or of a RemoteError, which begins with a name.

    >>> describe(ValueError("two\\nlines"))
    'ValueError: two\\\\nlines'
    """
    if isinstance(error, ShardError | RemoteError):
        return str(error)
    message = redact(str(error))[: 2 * MAX_DETAIL].encode(errors="backslashreplace").decode()
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)[:MAX_DETAIL]


def format_traceback(error: BaseException) -> str:
    """Return the last MAX_TRACEBACK characters of the traceback of an exception, without passwords of URLs."""
    return (
        redact("".join(traceback.format_exception(error)))[-MAX_TRACEBACK:].encode(errors="backslashreplace").decode()
    )


def check_limit(faults: Sequence[Fault], limit: int | None) -> None:
    """Raise TooManyFaultsError with the first traceback if there are more than `limit` faults."""
    if limit is not None and len(faults) > limit:
        first = faults[0]
        raise TooManyFaultsError(
            f"more than {limit} rows failed with an internal error (max_internal_errors); the first is row {first.key} "
            f"in stage {first.stage!r}:\n{first.traceback or first.detail}",
            faults,
        )


# Find the rows on which a computation fails, by bisection.

Failure = TypeVar("Failure")


def find_faulty(
    rows: Sequence[int], probe: Callable[[Sequence[int]], Failure | None], limit: int | None = None
) -> dict[int, Failure]:
    """Return {row: failure} of the rows on which `probe` fails, given that it failed on all `rows` together.

    `probe` computes some of the rows, and returns the failure or None. A row is faulty if it fails twice on its own;
    one failure alone may be transient. The result is empty if no single row is at fault. The search ends early when it
    has found more than `limit` rows.

    >>> find_faulty(range(100), lambda rows: "bad" if {7, 93} & set(rows) else None)
    {7: 'bad', 93: 'bad'}
    """
    found: dict[int, Failure] = {}
    suspects = [list(rows)]
    while suspects and (limit is None or len(found) <= limit):
        part = suspects.pop()
        if len(part) > 1:
            middle = len(part) // 2
            halves = (part[middle:], part[:middle])  # the first half is on top of the stack
            suspects += [half for half in halves if probe(half) is not None]
        elif part and (failure := probe(part)) is not None:
            found[part[0]] = failure
    return found


# Run a stage so that a row on which it raises costs this row alone.

Result = TypeVar("Result")

ROUNDS: Final = 2
"""Searches in one stage: a row that fails only in the absence of another faulty row is found in the second."""


def run_isolated(
    name: str,
    stage: Callable[[pa.Table], Result],
    table: pa.Table,
    limit: int | None = None,
    probe: Callable[[pa.Table], object] | None = None,
) -> tuple[Result, list[Fault]]:
    """Apply a stage, without the rows on which it raises; return the result and the faults.

    The rows are found by running `probe`, by default the stage itself, on parts of the table; these results are thrown
    away. The stage then runs once on the whole table without the rows, so that the result depends on the set of faulty
    rows alone. Raises the exception of the stage if no single row is at fault, BrokenProcessError if the process cannot
    go on, and TooManyFaultsError for more than `limit` rows.
    """
    faults: list[Fault] = []
    for _ in range(ROUNDS):
        try:
            return stage(table), faults
        except BaseException as error:
            check_fault(error)
            found = search(name, probe or stage, table, limit)
            if not found:
                raise
        faults += found.values()
        check_limit(faults, limit)
        table = drop_faulty(table, name, found)
    return stage(table), faults


def search(name: str, stage: Callable[[pa.Table], object], table: pa.Table, limit: int | None) -> dict[int, Fault]:
    """Return the faulty kept rows of a table by position."""
    keys = table["key"]

    def probe(rows: Sequence[int]) -> Fault | None:
        try:
            stage(table.take(pa.array(rows, pa.int64())))
        except BaseException as error:
            check_fault(error)
            return Fault(keys[rows[0]].as_py(), name, describe(error), format_traceback(error))
        return None

    return find_faulty(kept_indices(table), probe, limit)


def drop_faulty(table: pa.Table, stage: str, faults: Mapping[int, Fault]) -> pa.Table:
    """Mark rows (position -> fault) as dropped by a stage."""
    return drop_rows(table, stage, {i: fault.drop for i, fault in faults.items()}, further={stage: (INTERNAL_ERROR,)})


def check_fault(error: BaseException) -> None:
    """Raise an error again of which no row can be the cause, as `is_fault` tells.

    Raises BrokenProcessError for one of a GPU after which every call fails; a lack of memory is not one.
    """
    if not is_fault(error):
        raise error
    torch = sys.modules.get("torch")  # most processes of the download stage never import it
    if torch is not None and isinstance(error, torch.AcceleratorError):
        raise BrokenProcessError(describe(error)) from error


# A child process that serves calls to one object, and can be killed at any moment.
#
# It is started with `subprocess` and not `multiprocessing`, which would import the main module of the caller again; so
# scripts need no `if __name__ == "__main__"`. The child ends when its parent does.

COMMAND: Final = "import sys; sys.path.insert(0, sys.argv[2]); from pipeline.faults import main; main()"
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


def start_process(descriptor: int) -> "subprocess.Popen[bytes]":
    """Start a process that runs `main` on the connection with this file descriptor. Tests fork one in its place."""
    command = [sys.executable, "-c", COMMAND, str(descriptor), str(repository_root()), str(os.getpid())]
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL)


class Child:
    """A child process with the object that `factory`, which must be picklable, returns there.

    It starts at the first call, and again at the first call after its death; the new object has no memory of earlier
    calls.
    """

    def __init__(self, factory: Callable[[], object]) -> None:
        self.factory = pickle.dumps(factory)
        self.is_closed = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True
        self.kill()

    def start(self) -> None:
        """Start the process and create the object, unless it runs. Raises like `call`."""
        if self._process is not None:
            return
        if self.is_closed:  # a thread that goes on after the `with` block
            raise ProcessDiedError("the child is closed")
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = start_process(theirs.fileno())
        self._connection = Connection(ours.detach())
        try:
            self._request((sys.path, self.factory), START_S)
        except BaseException:  # the process has no object, and would not answer the next call
            self.kill()
            raise

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Return `object.method(*arguments)`; `timeout_s` does not include the start of the process.

        Raises ProcessDiedError, StepTimeoutError, the exceptions that KNOWN lists, and RemoteError for others.
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
            raise ProcessDiedError(f"{'killed by' if code < 0 else 'ended with'} {status_text(code)}") from None
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


# The process at the other end: create an object, and call its methods as requested.

KNOWN: Final = (UserError, ShardError, TooManyFaultsError)
"""Exceptions that reach the parent as they are."""
BROKEN: Final = 70
"""Exit code after a BrokenProcessError (EX_SOFTWARE)."""


def main() -> None:
    """Serve the connection whose file descriptor is the first argument, until the parent, the third one, closes it."""
    end_with_parent(int(sys.argv[3]))  # a stopped process cannot read that the connection is closed
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C in a terminal reaches the parent too, which kills this process
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # when memory is exhausted, this process ends first
    set_up_logging(logging.WARNING)
    connection = Connection(int(sys.argv[1]))
    requests = SimpleQueue[Any]()
    threading.Thread(target=receive, args=(connection, requests), daemon=True).start()
    sys.path[:], factory = requests.get()
    made: list[Any] = []
    answer(connection, lambda: made.append(pickle.loads(factory)()))
    while made:
        method, arguments = requests.get()
        answer(connection, lambda: getattr(made[0], method)(*arguments))  # noqa: B023  # called at once
    threading.Event().wait()  # the parent has the exception of the factory, and closes the connection


def receive(connection: Connection, requests: "SimpleQueue[Any]") -> None:
    """Queue the requests; end the process at once when the parent ends or closes the connection."""
    try:
        while True:
            requests.put(connection.recv())
    except BaseException:
        os._exit(0)


def answer(connection: Connection, function: Any) -> None:
    """Send (True, result) or (False, exception) of a function."""
    try:
        reply = True, function()
    except KNOWN as error:
        reply = False, error
    except BrokenProcessError as error:
        notify(f"the process ends: {error}")
        os._exit(BROKEN)
    except BaseException as error:
        reply = False, RemoteError(describe(error), format_traceback(error))
    connection.send(reply)
