"""The process at the other end of `child.Child`: create an object, and call its methods as requested."""

import logging
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from common.cli import set_up_logging
from common.errors import UserError
from pipeline.faults.fault import BrokenProcessError, ShardError, TooManyFaultsError, describe, format_traceback
from pipeline.rescue.child import RemoteError

KNOWN: Final = (UserError, ShardError, TooManyFaultsError)
"""Exceptions that reach the parent as they are."""
BROKEN: Final = 70
"""Exit code after a BrokenProcessError (EX_SOFTWARE)."""


def main() -> None:
    """Serve the connection whose file descriptor is the first argument, until the parent closes it."""
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
        print(f"the process ends: {error}", file=sys.stderr, flush=True)
        os._exit(BROKEN)
    except BaseException as error:
        reply = False, RemoteError(describe(error), format_traceback(error))
    connection.send(reply)
