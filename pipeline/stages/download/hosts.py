"""State that the downloads of a worker share: hosts that do not answer, a limit on bytes, and the open files.

The numbers of the system's errors are here too. What happens here depends on the network and on times, as the outcome of
every request does.
"""

import asyncio
import errno
import os
import re
import resource
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import aiohttp

from hypergrit_common.errors import MACHINE_ERRORS, is_machine_error
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.permits import grant, wait_for

TRIALS: Final = 4
"""Attempts in flight, less those that failed, at a host that has not yet accepted a connection."""

DEAD_S: Final = 60.0
"""After this time, one row tries a dead host again."""


class HostDeadError(Exception):
    """The host is dead; the message is the number of its failures, `reason` the drop reason of the last one."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Host:
    """The state of one host and port.

    It is dead after `max_failures` attempts in a row without a complete response if they took `patience_s` or longer
    together: a server that refuses connections while it restarts must not lose all its rows.
    """

    def __init__(self, max_failures: int, patience_s: float, clock: Callable[[], float]) -> None:
        self._max_failures, self._patience_s, self._clock = max_failures, patience_s, clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._n_trying = 0
        self._is_connected = False
        self._reason = ""
        self._since_s = self._failed_s = self._probe_s = 0.0
        self.n_failures = 0
        self.has_answered = False

    @property
    def is_dead(self) -> bool:
        """True if no request but an occasional probe is worth its time."""
        return self.n_failures >= self._max_failures and self._failed_s - self._since_s >= self._patience_s

    async def enter(self) -> None:
        """Wait until the host may be asked; each call is followed by one of `leave`. Raises HostDeadError."""
        while True:
            self._raise_if_dead()
            # Attempts in flight may complete the verdict, so no others start before they have ended.
            if self._is_connected or self._n_trying < max(1, TRIALS - self.n_failures):
                break
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await wait_for(turn, partial(self._wake, 1))
        self._n_trying += 1

    def start(self) -> None:
        """Begin an attempt after all waiting. Raises HostDeadError if the host died meanwhile; one row is the probe."""
        self._raise_if_dead()
        if self.is_dead:
            self._probe_s = self._clock() + DEAD_S

    def _raise_if_dead(self) -> None:
        if self.is_dead and self._clock() < self._probe_s:
            raise HostDeadError(self._reason, f"host given up after {self.n_failures} attempts without an answer")

    def leave(self) -> None:
        """End an attempt."""
        self._n_trying -= 1
        self._wake(len(self._waiting) if self.is_dead or self._is_connected else 1)

    def connected(self) -> None:
        """Note that the host accepted a connection."""
        if not self._is_connected:
            self._is_connected = True
            self._wake(len(self._waiting))

    def reused(self) -> None:
        """Note an idle connection of an earlier shard or row, which stays open only after a complete response."""
        self.connected()
        self.has_answered = True

    def answered(self) -> None:
        """Note a complete response, of whatever status."""
        self.connected()
        self.n_failures, self.has_answered = 0, True

    def failed(self, start_s: float, reason: str) -> None:
        """Note an attempt, begun at `start_s`, without a complete response."""
        self._since_s = start_s if self.n_failures == 0 else min(self._since_s, start_s)
        self._failed_s = self._clock()
        self._probe_s = self._failed_s + DEAD_S
        self.n_failures += 1
        self._reason = reason

    def is_worth_remembering(self) -> bool:
        """True for a host that failed last, and not long ago."""
        return self.n_failures > 0 and self._clock() - self._failed_s < 10 * DEAD_S

    def _wake(self, n: int) -> None:
        while n and self._waiting:
            n -= grant(self._waiting.popleft())


class Hosts:
    """The hosts that a process has met, by (name, port)."""

    def __init__(self, max_failures: int, patience_s: float, clock: Callable[[], float]) -> None:
        self._new = lambda: Host(max_failures, patience_s, clock)
        self._hosts: dict[tuple[str, int], Host] = {}

    def at(self, name: str, port: int) -> Host:
        if (name, port) not in self._hosts:
            self._hosts[name, port] = self._new()
        return self._hosts[name, port]

    def forget(self) -> None:
        """Forget the hosts that answer. Called between shards, so that the memory does not grow."""
        self._hosts = {key: host for key, host in self._hosts.items() if host.is_worth_remembering()}


# Limit on the bytes of bodies in memory.


class BudgetError(Exception):
    """A body does not fit now; reserve `n_bytes` and fetch it again."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(n_bytes)
        self.n_bytes = n_bytes


class ByteBudget:
    """A number of bytes shared by all bodies of a process, from the first block until the image is encoded.

    A body takes bytes as it arrives. While more than half are taken, no request starts, so that the budget is rarely
    exceeded. A body for which nothing is left raises BudgetError instead of waiting: bodies that wait for each
    other would never end, and a wait would count in the time limit of the attempt. Its row reserves what the body may
    need, outside any connection, and fetches it again.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.peak = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def lease(self, n_bytes: int) -> "Lease":
        """Reserve `n_bytes` once they are free and less than half of all bytes are taken."""
        if self._waiting or not self._fits(n_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((n_bytes, turn))
            await wait_for(turn, partial(self.give, n_bytes))
        else:
            self._take(n_bytes)
        return Lease(self, n_bytes)

    def try_take(self, n_bytes: int) -> bool:
        """Take bytes if they are free."""
        if self.used + n_bytes > self.limit:
            return False
        self._take(n_bytes)
        return True

    def give(self, n_bytes: int) -> None:
        """Return bytes, and start those who wait for them."""
        self.used -= n_bytes
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._take(wanted)
                turn.set_result(None)

    def _fits(self, n_bytes: int) -> bool:
        return self.used == 0 or (self.used <= self.limit // 2 and self.used + n_bytes <= self.limit)

    def _take(self, n_bytes: int) -> None:
        self.used += n_bytes
        self.peak = max(self.peak, self.used)


class Lease:
    """The bytes of one body, until `release`; a context manager."""

    def __init__(self, budget: ByteBudget, reserved: int) -> None:
        self.budget, self.n_bytes = budget, reserved

    def grow_to(self, n_bytes: int, need: int) -> None:
        """Hold at least `n_bytes`.

        Raises BudgetError with `need`, the most that the whole body may take, if they are not free.
        """
        if n_bytes > self.n_bytes:
            if not self.budget.try_take(n_bytes - self.n_bytes):
                raise BudgetError(need)
            self.n_bytes = n_bytes

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Return the bytes."""
        self.budget.give(self.n_bytes)
        self.n_bytes = 0


# Numbers of the system's errors behind an exception. Text never decides: a server can put `[Errno 24]` into its answer.

JOINED: Final = "Multiple exceptions: "
"""Start of the message in which aiohappyeyeballs joins those of several addresses. All of them are from this machine."""
NUMBER: Final = re.compile(r"\[Errno (\d{1,5})\]")


def error_number(error: BaseException) -> int:
    """Return the number of an error of the system, that of a lack if there are several, and 0 without one.

    EADDRNOTAVAIL counts only alone: a machine without IPv6 reports it for one of several addresses.
    """
    numbers = list(dict.fromkeys(number for found in _walk(error, set()) for number in _numbers(found)))
    numbers = [number for number in numbers if number != errno.EADDRNOTAVAIL] or numbers
    return next((number for number in numbers if number in MACHINE_ERRORS), numbers[0] if numbers else 0)


def _walk(error: BaseException, seen: set[int]) -> Iterator[OSError]:
    """Yield the errors of the system of which an exception consists, the outermost first."""
    if id(error) in seen:
        return
    seen.add(id(error))
    if isinstance(error, OSError):
        yield error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _walk(part, seen)
    if isinstance(error, aiohttp.ClientConnectorError):
        yield from _walk(error.os_error, seen)
    for origin in (error.__cause__, error.__context__):
        # A socket that is not ready raises BlockingIOError, which is no failure.
        if isinstance(origin, OSError | BaseExceptionGroup) and not isinstance(origin, BlockingIOError):
            yield from _walk(origin, seen)


def _numbers(error: OSError) -> list[int]:
    if isinstance(error, ssl.SSLError | socket.gaierror):  # their numbers are not those of the system
        return []
    if isinstance(error.errno, int):
        return [error.errno]
    if type(error) is OSError and str(error).startswith(JOINED):
        return list(map(int, NUMBER.findall(str(error))))
    return []


# Lack of open files, memory or threads on this machine: no row is dropped for it, but its shard fails.

FIXES: Final = {errno.ENETDOWN: "check download.proxy, and the network of this machine"}
FIX: Final = "raise the limits of this machine (ulimit -n, ulimit -u), or lower download.concurrency"


def machine_error(lack: OSError) -> OSError:
    """Return the error of a shard whose rows lack something on this machine."""
    where = f"in the download on {socket.gethostname()}"
    return OSError(lack.errno, f"{lack.strerror} {where}; {FIXES.get(lack.errno or 0, FIX)}")


def lack_behind(error: Exception) -> OSError | None:
    """Return what this machine lacked for a look-up to fail; None if it lacked nothing."""
    if isinstance(error, MemoryError) or (isinstance(error, socket.gaierror) and error.errno == socket.EAI_MEMORY):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if not is_machine_error(error):
        return None
    return error if isinstance(error, OSError) else OSError(errno.EAGAIN, str(error))  # no more threads


# The open files of a worker: its limit, and the shares of connections and look-ups in it.

MOST_FILES: Final = 65_536
"""Open files up to which the soft limit is raised; the hard limit of some systems is a billion."""
RESERVED: Final = 32
"""Files for everything else that this process opens meanwhile: decoders, the files of a shard, the permits."""

CONNECTION_FILES: Final = 2
"""A connection is attempted to two addresses of its host at a time."""
LOOKUP_FILES: Final = 3
"""The C library opens a socket for each name server that does not answer; it knows at most three."""
SLOW_FACTOR: Final = 8
"""Look-ups that may run at a time, as a multiple of `dns_concurrency`: most of them are slow."""
IDLE_FACTOR: Final = 8
"""Idle connections that are kept, as a multiple of `concurrency`."""


@dataclass(frozen=True)
class Shares:
    """The numbers of requests, idle connections and look-ups of names that a worker may have at a time."""

    requests: int
    idle: int
    lookups: int


def raise_file_limit() -> int:
    """Raise the soft limit for the open files of this process as far as it may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < wanted:
        with suppress(OSError, ValueError):  # some systems have a limit besides the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def count_open_files() -> int:
    """Count the open files of this process; RESERVED where the system does not tell."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return RESERVED


def share_files(config: DownloadConfig, n_free: int) -> Shares:
    """Divide `n_free` open files: a quarter each to requests and idle connections at most, the rest to look-ups.

    >>> share_files(DownloadConfig(), 20_000)
    Shares(requests=64, idle=512, lookups=1024)
    >>> share_files(DownloadConfig(), 900)
    Shares(requests=64, idle=225, lookups=182)
    """
    n_free = max(n_free - RESERVED, 0)
    requests = min(config.concurrency, max(1, n_free // 4 // CONNECTION_FILES))
    idle = min(IDLE_FACTOR * config.concurrency, n_free // 4)
    rest = (n_free - CONNECTION_FILES * requests - idle) // LOOKUP_FILES
    return Shares(requests, idle, min(SLOW_FACTOR * config.dns_concurrency, max(1, rest)))
