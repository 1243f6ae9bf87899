"""Permits to ask a host: at most so many at a time, in one process or in a whole job."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

KEY_BYTES: Final = 16
RECORD_BYTES: Final = 1 + KEY_BYTES
ASK, GIVE = b"a", b"g"
GRANTED, QUEUED, GRANTED_LATER = b"+", b"?", b"!"
"""Records of the protocol between workers and the job's server: one of these bytes and the key of a host."""

RECONNECT_S: Final = 60.0
"""Time for which a worker tries to reach the server again."""
CONNECT_S: Final = 10.0
PAUSE_S: Final = 0.5

Item = TypeVar("Item")
Request = tuple[asyncio.Future[None], asyncio.Future[None]]
"""An open request for a permit: the future of the reply, and that of the permit."""


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
        if self._table.ask(host.encode(), lambda: _grant(future)):
            future.set_result(None)
        return future

    def give(self, host: str) -> None:
        self._table.give(host.encode())


def _grant(future: asyncio.Future[None]) -> bool:
    if future.done():
        return False
    future.set_result(None)
    return True


class JobPermits(asyncio.Protocol):
    """Permits of a whole job, from the server at `address` (host, port, secret; permit_server.py).

    The server (permit_server.py) answers each request at once, with a permit or with a place in the queue. If the
    connection is lost, the server takes back what this worker holds, and the worker connects again and repeats its open
    requests. After RECONNECT_S, they fail with PermitsError.
    """

    def __init__(self, address: PermitAddress) -> None:
        self._address = address
        self._lost_s: float | None = None  # since when the server has not been heard
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._buffer = b""
        # For each host, the requests without a reply, and those that wait in the queue of the server.
        self._asked: dict[bytes, deque[Request]] = {}
        self._queued: dict[bytes, deque[asyncio.Future[None]]] = {}

    async def ask(self, host: str) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        replied: asyncio.Future[None] = loop.create_future()
        granted: asyncio.Future[None] = loop.create_future()
        key = _key(host)
        self._asked.setdefault(key, deque()).append((replied, granted))
        if self._transport is not None:
            self._transport.write(ASK + key)
        else:
            self._reconnect()
        try:
            await replied
        except asyncio.CancelledError:
            granted.cancel()
            raise
        return granted

    def give(self, host: str) -> None:
        if self._transport is not None:
            self._transport.write(GIVE + _key(host))

    def close(self) -> None:
        """Close the connection; the server takes back all permits."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _reconnect(self) -> None:
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        """Connect, and repeat the open requests; if that fails for RECONNECT_S, fail them."""
        loop = asyncio.get_running_loop()
        address = self._address
        try:
            while True:
                try:
                    async with asyncio.timeout(CONNECT_S):
                        transport, _ = await loop.create_connection(lambda: self, address.host, address.port)
                    break
                except OSError as error:  # includes TimeoutError
                    if self._lost_s is None:
                        self._lost_s = loop.time()
                    elif loop.time() - self._lost_s > RECONNECT_S:
                        place = f"{address.host}:{address.port}"
                        return self._fail(PermitsError(f"the job's permits at {place} cannot be reached: {error}"))
                    await asyncio.sleep(PAUSE_S)
            self._repeat(transport)
        finally:
            self._connecting = None

    def _repeat(self, transport: asyncio.Transport) -> None:
        """Ask for all open requests on a new connection."""
        transport.write(self._address.secret.encode())
        for key, queue in self._queued.items():
            replied: list[Request] = [(asyncio.get_running_loop().create_future(), granted) for granted in queue]
            self._asked.setdefault(key, deque()).extend(replied)
        self._queued.clear()
        for key, requests in self._asked.items():
            transport.write((ASK + key) * len(requests))
        self._buffer, self._transport = b"", transport

    def _fail(self, error: PermitsError) -> None:
        futures = [future for requests in self._asked.values() for pair in requests for future in pair]
        futures += [future for queue in self._queued.values() for future in queue]
        self._asked.clear()
        self._queued.clear()
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # not every future is awaited

    def data_received(self, data: bytes) -> None:
        self._lost_s = None
        self._buffer += data
        end = len(self._buffer) // RECORD_BYTES * RECORD_BYTES
        records, self._buffer = self._buffer[:end], self._buffer[end:]
        for i in range(0, end, RECORD_BYTES):
            self._receive(records[i : i + 1], records[i + 1 : i + RECORD_BYTES])

    def _receive(self, kind: bytes, key: bytes) -> None:
        if kind == GRANTED_LATER:
            granted = _pop(self._queued, key)
        else:
            replied, granted = _pop(self._asked, key)
            _grant(replied)
        if kind == QUEUED:
            self._queued.setdefault(key, deque()).append(granted)
        elif not _grant(granted) and self._transport is not None:
            self._transport.write(GIVE + key)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        loop = asyncio.get_running_loop()
        if self._lost_s is None:
            self._lost_s = loop.time()
        elif loop.time() - self._lost_s > RECONNECT_S:  # it accepts connections and closes them
            return self._fail(PermitsError("the job's permits refuse this worker"))
        if self._asked or self._queued:
            loop.call_later(PAUSE_S, self._reconnect)


def _key(host: str) -> bytes:
    return hashlib.blake2b(host.encode(), digest_size=KEY_BYTES).digest()


def _pop(queues: dict[bytes, deque[Item]], key: bytes) -> Item:
    """Take the first item of a queue; an empty queue disappears."""
    item = queues[key].popleft()
    if not queues[key]:
        del queues[key]
    return item
