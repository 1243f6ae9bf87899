"""Signals that ask the processes of a run to stop."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger(__name__)

STOPPING: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
REPEAT_S: Final = 10.0
"""Seconds in which further signals are repeats of the first: torchrun sends its processes each signal once more, and
schedulers send it to all processes, torchrun among them."""


class StopRequest:
    """The signal that asked the run to stop, if any, and its time."""

    signal_number: int | None = None
    received_s = 0.0  # of time.monotonic

    def is_repeated_by(self, signal_number: int) -> bool:
        """True if a further signal asks for the same. A second Ctrl-C, without torchrun, does not."""
        may_repeat = signal_number != signal.SIGINT or "TORCHELASTIC_RUN_ID" in os.environ
        return may_repeat and time.monotonic() - self.received_s < REPEAT_S


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Record SIGTERM, SIGUSR1 or SIGINT, so that the loop stops within two steps.

    A second one that does not repeat the first ends the process at once. Schedulers announce a preemption by SIGTERM,
    or by SIGUSR1 (`sbatch --signal=USR1@60`).

    Signals reach the main thread only: in another thread, such as that of a Ray Train worker, nothing is recorded.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handler(signal_number: int, frame: object) -> None:
        if request.signal_number is not None:
            if request.is_repeated_by(signal_number):
                return
            os._exit(128 + signal_number)
        request.signal_number, request.received_s = signal_number, time.monotonic()
        name = signal.Signals(signal_number).name
        logger.warning("%s received: saving a checkpoint within two steps", name)

    previous = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield request
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)
