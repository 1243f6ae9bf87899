"""The server of a job's permits, which the driver runs: at most so many requests at a time to each host, by all workers.

A worker holds its permits by its connection: when a worker dies, or is silent for `SILENT_S`, they return. The server
sees hashes of host names.
One process serves about 10^5 requests a second, and a row needs two.
"""

import asyncio
import hmac
import secrets
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

import uvloop

from pipeline.download.permits import (
    ASK,
    GIVE,
    GRANTED,
    GRANTED_LATER,
    QUEUED,
    SIGN_OF_LIFE,
    SILENT_S,
    PermitAddress,
    PermitTable,
    split_records,
)

CHECKS: Final = 10
"""Number of searches for silent workers in the time after which one counts as lost."""


class PermitServer:
    """A server in a thread of this process, until `close`; `address` is what the workers need.

    `host` is the address of this machine that the workers can reach. A worker that sends nothing for `silent_s` seconds
    loses its permits.
    """

    def __init__(self, limit: int, host: str = "127.0.0.1", silent_s: float = SILENT_S) -> None:
        secret = secrets.token_hex(16)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="permits", daemon=True)
        table = PermitTable(limit)
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address = PermitAddress(host, listener.getsockname()[1], secret)
        self._workers: weakref.WeakSet[_Worker] = weakref.WeakSet()

        def connect() -> _Worker:
            worker = _Worker(table, secret.encode(), self._loop.time)
            self._workers.add(worker)
            return worker

        starting = self._loop.create_server(connect, sock=listener)
        self._server = self._loop.run_until_complete(starting)
        self._silent_s = silent_s
        self._loop.call_later(silent_s / CHECKS, self._end_silent)
        self._thread.start()

    def _end_silent(self) -> None:
        for worker in list(self._workers):
            if self._loop.time() - worker.heard_s > self._silent_s:
                worker.close()
        self._loop.call_later(self._silent_s / CHECKS, self._end_silent)

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

    def __init__(self, table: PermitTable, secret: bytes, clock: Callable[[], float]) -> None:
        self._table, self._secret, self._clock = table, secret, clock
        self.heard_s = clock()
        self._transport: asyncio.Transport | None = None
        self._is_known = False
        self._buffer = b""
        self._held: Counter[bytes] = Counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own type

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._clock()
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
        if kind + key == SIGN_OF_LIFE:
            self._send(SIGN_OF_LIFE)
        elif kind == GIVE:
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
