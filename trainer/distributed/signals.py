"""Signals that ask the processes of a run to stop."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger(__name__)

STOPPING: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """The signal that asked the run to stop, if any."""

    signal_number: int | None = None


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Record SIGTERM, SIGUSR1 or SIGINT, so that the loop stops after its step. A second one ends the process at once.

    Schedulers announce a preemption by SIGTERM, or by SIGUSR1 (`sbatch --signal=USR1@60`).

    Signals reach the main thread only: in another thread, such as that of a Ray Train worker, nothing is recorded.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handler(signal_number: int, frame: object) -> None:
        if request.signal_number is not None:
            os._exit(128 + signal_number)
        request.signal_number = signal_number
        logger.warning("%s received: saving a checkpoint after this step", signal.Signals(signal_number).name)

    previous = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield request
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)
