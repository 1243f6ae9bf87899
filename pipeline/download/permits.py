"""Permits to ask a host: at most so many at a time, in one process or in a whole job."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

KEY_BYTES: Final = 16
RECORD_BYTES: Final = 1 + KEY_BYTES
ASK, GIVE = b"a", b"g"
GRANTED, QUEUED, GRANTED_LATER = b"+", b"?", b"!"
"""Records of the protocol between workers and the job's server: one of these bytes and the key of a host."""
SIGN_OF_LIFE: Final = b"." + bytes(KEY_BYTES)
"""A record that a worker sends every PING_S seconds, and that the server sends back."""
PING_S: Final = 15.0
SILENT_S: Final = 60.0
"""Time after which the server takes back the permits of a worker that sends nothing: its machine is lost."""


def split_records(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the complete records in `data`, each as its first byte and the key, and the bytes after them."""
    end = len(data) // RECORD_BYTES * RECORD_BYTES
    return [(data[i : i + 1], data[i + 1 : i + RECORD_BYTES]) for i in range(0, end, RECORD_BYTES)], data[end:]


class PermitAddress(NamedTuple):
    """Address of the server of a job's permits, and the secret that it expects first."""

    host: str
    port: int
    secret: str


class PermitsError(Exception):
    """The server of the job's permits cannot be reached, so the shard cannot be downloaded."""


class PermitTable:
    """The permits in use and the queue of each host. `limit` permits exist for every host."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._in_use: dict[bytes, int] = {}
        self._queues: dict[bytes, deque[Callable[[], bool]]] = {}

    def ask(self, key: bytes, grant: Callable[[], bool]) -> bool:
        """Take a permit and return True; else return False and call `grant` later.

        `grant` returns False if nobody needs the permit any more.
        """
        if self._in_use.get(key, 0) < self.limit:
            self._in_use[key] = self._in_use.get(key, 0) + 1
            return True
        self._queues.setdefault(key, deque()).append(grant)
        return False

    def give(self, key: bytes) -> None:
        """Return a permit; it passes to the first in the queue."""
        queue = self._queues.get(key, deque())
        while queue:
            if queue.popleft()():
                return
        self._queues.pop(key, None)
        self._in_use[key] -= 1
        if not self._in_use[key]:
            del self._in_use[key]


class Permits(Protocol):
    """The permits as a worker sees them."""

    async def ask(self, host: str) -> asyncio.Future[None]:
        """Ask for a permit; return a future that is done as soon as it is granted.

        If the future is cancelled, a permit granted later returns by itself.
        """
        ...

    def give(self, host: str) -> None:
        """Return a granted permit."""
        ...


class LocalPermits:
    """Permits of one process."""

    def __init__(self, limit: int) -> None:
        self._table = PermitTable(limit)

    async def ask(self, host: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._table.ask(host.encode(), lambda: grant(future)):
            future.set_result(None)
        return future

    def give(self, host: str) -> None:
        self._table.give(host.encode())


def grant(future: asyncio.Future[None]) -> bool:
    if future.done():
        return False
    future.set_result(None)
    return True
