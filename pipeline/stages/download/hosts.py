"""Memory of hosts that do not answer, so that their remaining rows cost nothing.

What happens here depends on the network and on times, as the outcome of every request does. A row is dropped only for
failures of its own host.
"""

import asyncio
import errno
import logging
import os
import re
import resource
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
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
        self.since_s = self._failed_s = self._probe_s = 0.0
        self.is_convicted = False  # its failures are not those of this machine's network
        self.n_failures = 0
        self.has_answered = False

    @property
    def is_dead(self) -> bool:
        """True if no request but an occasional probe is worth its time."""
        return self.n_failures >= self._max_failures and self._failed_s - self.since_s >= self._patience_s

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

    def forgive(self) -> None:
        """Forget the failures: they were those of this machine's network."""
        self.n_failures, self.is_convicted = 0, False
        self._wake(TRIALS)

    def reused(self) -> None:
        """Note an idle connection of an earlier shard or row, which stays open only after a complete response."""
        self.connected()
        self.has_answered = True

    def answered(self) -> None:
        """Note a complete response, of whatever status."""
        self.connected()
        self.n_failures, self.has_answered, self.is_convicted = 0, True, False

    def failed(self, start_s: float, reason: str) -> None:
        """Note an attempt, begun at `start_s`, without a complete response."""
        self.since_s = start_s if self.n_failures == 0 else min(self.since_s, start_s)
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


def lacks_files() -> bool:
    """Return True if this process cannot open four more files: a call that needs some may have failed for it."""
    opened: list[int] = []
    try:
        for _ in range(2):
            opened += os.pipe()
    except OSError:
        return True
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False


# Pauses of this process: stopped by a signal, or with its machine. They are no fault of a row or of a host.

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
            if self.n_pauses == 1:
                logger.warning(
                    "the download stood still for %.1f s, since the machine is busy; what failed meanwhile is tried again, "
                    "and further pauses are not mentioned; raise download.timeout_s if many rows time out", late_s
                )  # fmt: skip
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


# Lack of open files, memory, threads or ports on this machine: rows wait for its end, and are not dropped for it.

PAUSE_S: Final = 0.2
MAX_PAUSE_S: Final = 3.0
"""Pause before another try, which doubles with each up to MAX_PAUSE_S."""
PATIENCE_S: Final = 60.0
"""Time in which nothing succeeds, after which the shard fails. A look-up of the C library ends within 30 s."""
FIX: Final = "raise the limits of this machine (ulimit -n, ulimit -u), or lower download.concurrency"

NETWORK_FIX: Final = "check the network of this machine and download.proxy, and its name server"


def fix_of(lack: OSError) -> str:
    """Return the advice for a lack."""
    return NETWORK_FIX if lack.errno == errno.ENETDOWN else FIX


class Shortage:
    """The lack that the rows of a worker share; `clock` is the time of the event loop.

    A lack passes when others return what they hold. It is an error of the machine if nobody gets anything for
    PATIENCE_S.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.felt_s = self.worked_s = float("-inf")
        self._is_logged = False

    def worked(self) -> None:
        """Note a look-up or an attempt that had what it needed."""
        self.worked_s = self.clock()

    def felt_since(self, start_s: float) -> bool:
        """Return True if this machine lacked something since `start_s`, or does now."""
        return self.felt_s >= start_s or lacks_files()

    def feel(self, lack: OSError) -> None:
        """Note a lack; the first is logged."""
        self.felt_s = self.clock()
        if not self._is_logged:
            self._is_logged = True
            logger.warning("%s on %s: rows wait until that ends; %s", lack.strerror, socket.gethostname(), fix_of(lack))


class Patience:
    """The tries of one row or name."""

    def __init__(self, shortage: Shortage) -> None:
        self._shortage = shortage
        self._start_s: float | None = None
        self._pause_s = PAUSE_S

    async def wait(self, lack: OSError) -> None:
        """Wait before the next try. Raises OSError with the number of `lack` if it lasts too long."""
        shortage = self._shortage
        shortage.feel(lack)
        now = shortage.clock()
        self._start_s = now if self._start_s is None else self._start_s
        if now - max(self._start_s, shortage.worked_s) >= PATIENCE_S:
            where = f"in the download for {PATIENCE_S:g} s on {socket.gethostname()}"
            raise OSError(lack.errno, f"{lack.strerror} {where}; {fix_of(lack)}") from lack
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    @property
    def is_alone(self) -> bool:
        """True if this one has waited for PATIENCE_S while others had what they needed."""
        if self._start_s is None:
            return False
        shortage = self._shortage
        return shortage.clock() - self._start_s >= PATIENCE_S and shortage.worked_s > self._start_s


def is_doubtful(error: object) -> bool:
    """Return True for EINVAL and EBUSY of `getaddrinfo`: usually, but not certainly, a lack of open files."""
    return isinstance(error, OSError) and error.errno in (errno.EINVAL, errno.EBUSY)


def lack_behind(error: BaseException) -> OSError | None:
    """Return what the machine lacked for a look-up of `getaddrinfo` to fail; None if it lacked nothing."""
    if isinstance(error, socket.gaierror):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) if error.errno == socket.EAI_MEMORY else None
    if isinstance(error, MemoryError):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if isinstance(error, OSError):
        if is_machine_error(error):
            return error
        return OSError(errno.EMFILE, f"{error.strerror} in a look-up") if is_doubtful(error) else None
    return OSError(errno.EAGAIN, str(error)) if is_machine_error(error) else None


def has_source(address: str) -> bool:
    """Return True if this machine has an address from which it can reach `address`; no packet is sent.

    EADDRNOTAVAIL is otherwise no lack of ports: a machine without IPv6 reports it for each IPv6 address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError as error:
        return is_machine_error(error) and error.errno != errno.EADDRNOTAVAIL
    return True


# Loss of the network or of the name server of this machine: rows wait for its end, and are not dropped for it.
#
# A failure is the row's own if anything else succeeded during its attempt, and the network had not been lost at its begin.
# Else the row waits for a sign: after another row's success, it tries again; if many names or hosts fail and nothing
# succeeds, the fault is this machine's; and if all rows that are left wait, they are too few to tell, and the failures are
# their own.

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

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do not count a row of `one` within the context, in which it waits for something that counts itself."""
        self._n_rows -= 1
        self._check()
        try:
            yield
        finally:
            self._n_rows += 1

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
        self._back_s = float("-inf")  # the success that ended the last outage: MANY failures without one

    def worked(self) -> None:
        """Note a success."""
        super().worked()
        if len(self._failed) >= MANY:
            self._back_s = self.worked_s
        self._failed.clear()
        self._rows.wake(self)

    async def explains(self, subject: str, start_s: float, patience: Patience) -> bool:
        """Wait until an attempt for `subject`, begun at `start_s`, is worth repeating; return False if it is not.

        Raises OSError if nothing succeeds for the time of `patience`.
        """
        if self.worked_s >= start_s:
            return start_s < self._back_s
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
