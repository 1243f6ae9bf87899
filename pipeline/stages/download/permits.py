"""Permits to ask a host: at most so many at a time, in one process or in a whole job."""

import asyncio
import hashlib
import hmac
import secrets
import socket
import threading
import weakref
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol, TypeVar, cast

import uvloop

KEY_BYTES: Final = 16
RECORD_BYTES: Final = 1 + KEY_BYTES
ASK, GIVE = b"a", b"g"
GRANTED, QUEUED, GRANTED_LATER = b"+", b"?", b"!"
"""Records of the protocol between workers and the job's server: one of these bytes and the key of a host."""
LOST_S: Final = 60
"""Time after which the system ends the connection to a machine that sends nothing back."""
PROBES: Final = 3
"""Packets to which such a machine does not reply."""


def end_if_lost(connection: socket.socket) -> None:
    """Let the system end a connection whose other end is lost, as far as it can: a machine that vanishes closes none."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause_s = LOST_S // (PROBES + 1)
    times = {"IDLE": pause_s, "INTVL": pause_s, "CNT": PROBES}
    options = {f"TCP_KEEP{name}": value for name, value in times.items()} | {"TCP_USER_TIMEOUT": 1000 * LOST_S}
    for option, value in options.items():
        if hasattr(socket, option):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def split_records(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the complete records in `data`, each as its first byte and the key, and the bytes after them."""
    end = len(data) // RECORD_BYTES * RECORD_BYTES
    return [(data[i : i + 1], data[i + 1 : i + RECORD_BYTES]) for i in range(0, end, RECORD_BYTES)], data[end:]


class PermitAddress(NamedTuple):
    """Address of the server of a job's permits, and the secret that it expects first."""

    host: str
    """Name or address of the driver's machine."""
    port: int
    """TCP port."""
    secret: str
    """32 hex digits."""


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
    """Let whoever waits for a turn go on; return False if nobody does any more."""
    if future.done():
        return False
    future.set_result(None)
    return True


async def wait_for(turn: asyncio.Future[None], give: Callable[[], object]) -> None:
    """Wait for a turn; call `give` if it comes to a task that is cancelled at the same time."""
    try:
        await turn
    except asyncio.CancelledError:
        if turn.done() and not turn.cancelled():
            give()
        raise


# Permits of a whole job, as a worker sees them: the client of the job's server.

RECONNECT_S: Final = 60.0
"""Time for which a worker tries to reach the server again."""
CONNECT_S: Final = 10.0
PAUSE_S: Final = 0.5

Item = TypeVar("Item")
Request = tuple[asyncio.Future[None], asyncio.Future[None]]
"""An open request for a permit: the future of the reply, and that of the permit."""


class JobPermits(asyncio.Protocol):
    """Permits of a whole job, from the PermitServer at `address` (host, port, secret).

    The server answers each request at once, with a permit or with a place in the queue. If the
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
                    end_if_lost(transport.get_extra_info("socket"))
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
        records, self._buffer = split_records(self._buffer + data)
        for kind, key in records:
            self._receive(kind, key)

    def _receive(self, kind: bytes, key: bytes) -> None:
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
        if not (self._asked or self._queued):  # nobody needs the server now; the next request looks for it anew
            self._lost_s = None
            return
        loop, pause_s = asyncio.get_running_loop(), PAUSE_S
        if self._lost_s is None:  # it may have been lost between two shards
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


# The server of a job's permits, which the driver runs: at most so many requests at a time to each host, by all workers.
#
# A worker holds its permits by its connection: when a worker or its machine dies, they return. The server sees hashes of
# host names.
# One process serves about 10^5 requests a second, and a row needs two.


class PermitServer:
    """A server in a thread of this process, until `close`; `address` is what the workers need.

    Args:
        limit: permits of each host: requests that the whole job has in flight to it.
        host: address of this machine that the workers can reach.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(self, limit: int, host: str = "127.0.0.1") -> None:
        secret = secrets.token_hex(16)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="permits", daemon=True)
        table = PermitTable(limit)
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        end_if_lost(listener)  # its connections inherit that
        self.address = PermitAddress(host, listener.getsockname()[1], secret)
        self._workers: weakref.WeakSet[_Worker] = weakref.WeakSet()

        def connect() -> _Worker:
            worker = _Worker(table, secret.encode())
            self._workers.add(worker)
            return worker

        starting = self._loop.create_server(connect, sock=listener)
        self._server = self._loop.run_until_complete(starting)
        self._thread.start()

    def close(self) -> None:
        """Stop the server; workers that still download lose their permits."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        for worker in self._workers:
            worker.close()
        self._loop.run_until_complete(asyncio.sleep(0))  # lets the connections end
        self._loop.close()

    def __enter__(self) -> "PermitServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker(asyncio.Protocol):
    """The connection of one worker."""

    def __init__(self, table: PermitTable, secret: bytes) -> None:
        self._table, self._secret = table, secret
        self._transport: asyncio.Transport | None = None
        self._is_known = False
        self._buffer = b""
        self._held: Counter[bytes] = Counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own type

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_known:
            if len(self._buffer) < len(self._secret):
                return
            secret, self._buffer = self._buffer[: len(self._secret)], self._buffer[len(self._secret) :]
            if not hmac.compare_digest(secret, self._secret):
                self.close()
                return
            self._is_known = True
        records, self._buffer = split_records(self._buffer)
        for kind, key in records:
            self._receive(kind, key)

    def _receive(self, kind: bytes, key: bytes) -> None:
        """Handle a record, and send its reply before the next is read: that may grant what this one asked for."""
        if kind == GIVE:
            if self._held[key] > 0:  # a permit of an earlier connection has returned with it
                self._held[key] -= 1
                if not self._held[key]:
                    del self._held[key]
                self._table.give(key)
        elif kind == ASK:
            if self._table.ask(key, lambda: self._grant(key)):
                self._held[key] += 1
                self._send(GRANTED + key)
            else:
                self._send(QUEUED + key)
        else:
            self.close()

    def _send(self, record: bytes) -> None:
        if self._transport is not None:
            self._transport.write(record)  # uvloop sends all records of an iteration together

    def _grant(self, key: bytes) -> bool:
        """Pass a permit on to this worker, if it still lives."""
        if self._transport is None:
            return False
        self._held[key] += 1
        self._transport.write(GRANTED_LATER + key)
        return True

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        held, self._held = self._held, Counter()
        for key, n in held.items():
            for _ in range(n):
                self._table.give(key)


# Connections in flight: a limit for this worker, and permits for each host.


class Slots:
    """The connections of one worker.

    A row first takes one of the worker's slots, then a permit of its host. If it must wait for the permit, it returns
    the slot meanwhile, and is the next to get one when the permit comes. So a busy host occupies no slots of the
    others, and a permit, which other workers may wait for, never lies idle behind a full queue.
    """

    def __init__(self, limit: int, permits: Permits) -> None:
        self._turns, self._permits = Turns(limit), permits

    @asynccontextmanager
    async def at(self, host: str) -> AsyncIterator[None]:
        """Wait for a slot and a permit of `host`, and hold both until the context ends."""
        await self._turns.take()
        holds_turn = True
        try:
            granted = await self._permits.ask(host)
            if not granted.done():
                self._turns.give()
                holds_turn = False
            try:
                await granted
                if not holds_turn:
                    await self._turns.take(is_urgent=True)
                    holds_turn = True
                yield
            finally:
                if granted.done() and not granted.cancelled() and granted.exception() is None:
                    self._permits.give(host)
        finally:
            if holds_turn:
                self._turns.give()


class Turns:
    """A semaphore with two queues, of which the urgent one comes first."""

    def __init__(self, n: int) -> None:
        self._free = n
        self._queues: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque())

    async def take(self, is_urgent: bool = False) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[0 if is_urgent else 1].append(turn)
        await wait_for(turn, self.give)

    def give(self) -> None:
        for queue in self._queues:
            while queue:
                if grant(queue.popleft()):
                    return
        self._free += 1
