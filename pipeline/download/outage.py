"""Loss of the network or of the name server of this machine: rows wait for its end, and are not dropped for it.

A failure is the row's own if anything else succeeded during its attempt. Else the row waits for a sign: after another
row's success, it tries again; if many names or hosts fail and nothing succeeds, the fault is this machine's; and if all
rows that are left wait, they are too few to tell, and the failures are their own.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pipeline.download.shortage import Patience, Shortage

MANY: Final = 20
"""Number of names, or of hosts, whose failures without any success between them are the fault of this machine."""


class Rows:
    """The rows of a worker that are under way, and how many of them wait for a sign of another."""

    def __init__(self) -> None:
        self._n_rows = 0
        self._waiting: dict[asyncio.Future[bool], Outage] = {}

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a row within the context."""
        self._n_rows += 1
        try:
            yield
        finally:
            self._n_rows -= 1
            self._check()

    async def wait(self, outage: "Outage") -> bool:
        """Wait for a sign; return False if none can come."""
        sign: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[sign] = outage
        self._check()
        try:
            return await sign
        finally:
            self._waiting.pop(sign, None)

    def wake(self, outage: "Outage") -> None:
        """Let the rows that wait for `outage` try again."""
        self._end([sign for sign, other in self._waiting.items() if other is outage], True)

    def _check(self) -> None:
        if len(self._waiting) >= self._n_rows:
            self._end(list(self._waiting), False)

    def _end(self, signs: list[asyncio.Future[bool]], sign: bool) -> None:
        for future in signs:
            del self._waiting[future]
            if not future.done():
                future.set_result(sign)


class Outage(Shortage):
    """The failures of names, or those of hosts, since the last success. It outlives the shards of a worker.

    `probe` looks for a success of its own, if there is something that worked before.
    """

    def __init__(
        self, what: str, rows: Rows, clock: Callable[[], float], probe: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        super().__init__(clock)
        self._lack = OSError(errno.ENETDOWN, f"no {what} can be reached")
        self._rows, self._probe = rows, probe
        self._probing: asyncio.Task[None] | None = None
        self._failed: set[str] = set()

    def worked(self) -> None:
        """Note a success."""
        super().worked()
        self._failed.clear()
        self._rows.wake(self)

    async def explains(self, subject: str, start_s: float, patience: Patience) -> bool:
        """Wait until an attempt for `subject`, begun at `start_s`, is worth repeating; return False if it is not.

        Raises OSError if nothing succeeds for the time of `patience`.
        """
        if self.worked_s >= start_s:
            return False
        self._failed.add(subject)
        if len(self._failed) < MANY:
            return await self._rows.wait(self)
        self._rows.wake(self)
        if self._probe is not None:
            if self._probing is None or self._probing.done():
                self._probing = asyncio.create_task(self._look(self._probe))
            await asyncio.shield(self._probing)
            if self.worked_s >= start_s:
                return True
        await patience.wait(self._lack)
        return True

    async def _look(self, probe: Callable[[], Awaitable[bool]]) -> None:
        if await probe():
            self.worked()
