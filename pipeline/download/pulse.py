"""Pauses of this process: stopped by a signal, or with its machine. They are no fault of a row or of a host."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger("hypergrit")

BEAT_S: Final = 0.25
LATE_S: Final = 1.0
"""A beat of the event loop that is this late was a pause: timers fire before the answers that came meanwhile are read."""
MAX_REPEATS: Final = 5
"""Number of pauses in the attempts of one row or name after which a failure counts all the same."""


class Pulse:
    """A clock that stands still while this process does, as long as `beating` lasts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen_s = clock()
        self._paused_s = 0.0
        self.n_pauses = 0

    def time(self) -> float:
        """Return the time in seconds without the pauses."""
        now = self._clock()
        late_s = now - self._seen_s - BEAT_S
        if late_s > LATE_S:
            self._paused_s += late_s
            self.n_pauses += 1
            logger.warning("the download stood still for %.1f s; what failed meanwhile is tried again", late_s)
        self._seen_s = now
        return now - self._paused_s

    def has_paused(self, n_pauses: int) -> bool:
        """Return True if there was a pause since `n_pauses`."""
        self.time()  # timers of others may fire before that of the next beat
        return self.n_pauses > n_pauses

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Watch the running event loop; between two tables, it stands still without a pause."""
        loop = asyncio.get_running_loop()
        self._seen_s = self._clock()

        def beat() -> None:
            self.time()
            timers[0] = loop.call_later(BEAT_S, beat)

        timers = [loop.call_later(BEAT_S, beat)]
        try:
            yield
        finally:
            timers[0].cancel()
