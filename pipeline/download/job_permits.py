"""Permits of a whole job, as a worker sees them: the client of the job's server (permit_server.py)."""

import asyncio
import hashlib
from collections import deque
from typing import Final, TypeVar

from pipeline.download.permits import (
    ASK,
    GIVE,
    GRANTED_LATER,
    KEY_BYTES,
    PING_S,
    QUEUED,
    SIGN_OF_LIFE,
    PermitAddress,
    PermitsError,
    grant,
    split_records,
)

RECONNECT_S: Final = 60.0
"""Time for which a worker tries to reach the server again."""
CONNECT_S: Final = 10.0
PAUSE_S: Final = 0.5
MAX_UNANSWERED: Final = 4
"""Number of signs of life without an answer after which a worker gives up the connection."""

Item = TypeVar("Item")
Request = tuple[asyncio.Future[None], asyncio.Future[None]]
"""An open request for a permit: the future of the reply, and that of the permit."""


class JobPermits(asyncio.Protocol):
    """Permits of a whole job, from the server at `address` (host, port, secret; permit_server.py).

    The server (permit_server.py) answers each request at once, with a permit or with a place in the queue. If the
    connection is lost, the server takes back what this worker holds, and the worker connects again and repeats its open
    requests. After RECONNECT_S, they fail with PermitsError. A machine that vanishes closes no connection, so both
    sides expect signs of life.
    """

    def __init__(self, address: PermitAddress) -> None:
        self._address = address
        self._lost_s: float | None = None  # since when the server has not been heard
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._pinging: asyncio.TimerHandle | None = None
        self._n_unanswered = 0
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
        self._stop_pings()
        self._asked.clear()  # so that the loss of the connection opens no other
        self._queued.clear()
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
                    if transport.is_closing():
                        raise ConnectionResetError("the connection was closed at once")
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
        self._buffer, self._transport, self._n_unanswered = b"", transport, 0
        self._stop_pings()
        self._pinging = asyncio.get_running_loop().call_later(PING_S, self._ping)

    def _ping(self) -> None:
        """Send a sign of life; end a connection on which none came back.

        They are counted, not timed: between two shards, the event loop stands still.
        """
        if self._transport is None:
            return
        if self._n_unanswered >= MAX_UNANSWERED:
            self._transport.abort()
            return
        self._n_unanswered += 1
        self._transport.write(SIGN_OF_LIFE)
        self._pinging = asyncio.get_running_loop().call_later(PING_S, self._ping)

    def _stop_pings(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
            self._pinging = None

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
        self._lost_s, self._n_unanswered = None, 0
        records, self._buffer = split_records(self._buffer + data)
        for kind, key in records:
            self._receive(kind, key)

    def _receive(self, kind: bytes, key: bytes) -> None:
        if kind + key == SIGN_OF_LIFE:
            return
        if kind == GRANTED_LATER:
            granted = _pop(self._queued, key)
        else:
            replied, granted = _pop(self._asked, key)
            grant(replied)
        if kind == QUEUED:
            self._queued.setdefault(key, deque()).append(granted)
        elif not grant(granted) and self._transport is not None:
            self._transport.write(GIVE + key)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._stop_pings()
        if not (self._asked or self._queued):  # nobody needs the server now; the next request looks for it anew
            self._lost_s = None
            return
        loop, pause_s = asyncio.get_running_loop(), PAUSE_S
        if self._lost_s is None:  # the server may have closed it between two shards, when this worker was silent
            self._lost_s, pause_s = loop.time(), 0.0
        elif loop.time() - self._lost_s > RECONNECT_S:  # it accepts connections and closes them
            return self._fail(PermitsError("the job's permits refuse this worker"))
        loop.call_later(pause_s, self._reconnect)


def _key(host: str) -> bytes:
    return hashlib.blake2b(host.encode(), digest_size=KEY_BYTES).digest()


def _pop(queues: dict[bytes, deque[Item]], key: bytes) -> Item:
    """Take the first item of a queue; an empty queue disappears."""
    item = queues[key].popleft()
    if not queues[key]:
        del queues[key]
    return item
