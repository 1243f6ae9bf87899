"""Look-up of host names: in threads of its own, once for all rows of a name, remembered from shard to shard.

Neither asyncio nor aiohttp can do this: uvloop resolves in a pool of four threads, and aiohttp starts a look-up within
the time limit of the request. Here a row waits for its name before it takes a connection, so that a name server that is
slow or silent costs only the rows of its own names.
"""

import _thread
import asyncio
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

from pipeline.stages.download.addresses import check_addresses
from pipeline.stages.download.hosts import lack_behind, machine_error

FOUND_S: Final = 600.0
MISSING_S: Final = 60.0
"""How long an address, and the failure of a look-up, are remembered. The answers of getaddrinfo have no times."""

MAX_NAMES: Final = 20_000
"""Number of names that are remembered (about 10 MB)."""

SLOW_S: Final = 1.0
"""A look-up that takes longer gives its place to the next one."""

RETRY_PAUSE_S: Final = 0.5
QUICK_FAILURE_S: Final = 5.0
"""A temporary failure that came within QUICK_FAILURE_S is asked again once; a later one has been retried by libc."""

TEMPORARY: Final = (socket.EAI_AGAIN, socket.EAI_SYSTEM, socket.EAI_MEMORY)

Found = tuple[str, ...] | Exception | None
"""The addresses of a name, the exception of its look-up, or None without an answer in time."""


@dataclass(frozen=True)
class Answer:
    """The addresses of a name, or the reason why there are none, until a time of the event loop."""

    addresses: tuple[str, ...]
    failure: str
    expires_s: float


class NameLookupError(Exception):
    """A name has no addresses; the message is the reason."""


class Resolver(AbstractResolver):
    """A resolver with a cache, for one event loop.

    `lookup` finds the addresses of a name. `resolve` hands them to aiohttp, which connects to no others; it raises
    PrivateAddressError if one of them is private, unless the name is in `allowed` (canonical forms). At most
    `concurrency` look-ups run that are not slow, and `max_threads` in all.
    """

    def __init__(self, allowed: frozenset[str], concurrency: int, timeout_s: float, max_threads: int) -> None:
        self.allowed, self.timeout_s = allowed, timeout_s
        self._answers: dict[str, Answer] = {}
        self._running: dict[str, asyncio.Task[Answer]] = {}
        self._places = asyncio.Semaphore(concurrency)
        self._threads = asyncio.Semaphore(max_threads)

    async def lookup(self, host: str) -> tuple[str, ...]:
        """Find the addresses of a name. Raises NameLookupError, and OSError for a lack on this machine."""
        answer = self._answers.get(host)
        if answer is None or answer.expires_s < asyncio.get_running_loop().time():
            if host not in self._running:
                self._running[host] = task = asyncio.create_task(self._ask(host))
                task.add_done_callback(partial(self._end, host))
            # A row that is cancelled must not take the answer from the others.
            answer = await asyncio.shield(self._running[host])
        if answer.failure:
            raise NameLookupError(answer.failure)
        return answer.addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses for a connection; those of the last look-up, even if they have expired since."""
        answer = self._answers.get(host)
        addresses = (answer and answer.addresses) or await self.lookup(host)
        check_addresses(host, addresses, self.allowed)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        for task in self._running.values():
            task.cancel()

    def _end(self, host: str, task: asyncio.Task[Answer]) -> None:
        self._running.pop(host, None)
        if not task.cancelled():
            task.exception()  # each row of the name has raised it, unless it was cancelled

    async def _ask(self, host: str) -> Answer:
        found = await self._ask_twice(host)
        addresses, failure = (found, "") if isinstance(found, tuple) else ((), self._failure(found))
        if not addresses and not failure:
            failure = "no addresses"
        expires_s = asyncio.get_running_loop().time() + (MISSING_S if failure else FOUND_S)
        answer = Answer(addresses, failure, expires_s)
        self._answers.pop(host, None)
        self._answers[host] = answer  # the last, so that the oldest is the first
        if len(self._answers) > MAX_NAMES:
            del self._answers[next(iter(self._answers))]
        return answer

    def _failure(self, error: Exception | None) -> str:
        if error is None:
            return f"no answer in {self.timeout_s:g} s"
        if isinstance(error, socket.gaierror):
            return error.strerror or str(error)
        return f"{type(error).__name__}: {error}"

    async def _ask_twice(self, host: str) -> Found:
        """Ask for a name, again after a pause if a temporary failure came quickly. Raises OSError for a lack."""
        start_s = time.monotonic()
        found = await self._ask_once(host)
        if is_temporary(found) and time.monotonic() - start_s < QUICK_FAILURE_S:
            await asyncio.sleep(RETRY_PAUSE_S)
            found = await self._ask_once(host)
        if isinstance(found, Exception) and (lack := lack_behind(found)) is not None:
            raise machine_error(lack) from found
        return found

    async def _ask_once(self, host: str) -> Found:
        """Ask for a name in a thread."""
        await self._threads.acquire()
        try:
            async with self._places:
                found = self._start(host)
                await asyncio.wait([found], timeout=min(SLOW_S, self.timeout_s))
        except BaseException:
            self._threads.release()
            raise
        # A thread cannot be stopped: it occupies its place among all until the C library returns.
        found.add_done_callback(lambda _: self._threads.release())
        await asyncio.wait([found], timeout=max(0.0, self.timeout_s - SLOW_S))
        return found.result() if found.done() else None

    def _start(self, host: str) -> asyncio.Future[tuple[str, ...] | Exception]:
        """Start the look-up of a name in a thread of its own.

        The end of the process does not wait for it, as it would for a thread of a pool. `threading.Thread.start` waits
        until the thread runs, which would stop the event loop for half a second at 128 look-ups.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[tuple[str, ...] | Exception] = loop.create_future()

        def finish(result: tuple[str, ...] | Exception) -> None:
            if not found.done():
                found.set_result(result)

        def run() -> None:
            result = look_up(host)
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(finish, result)

        try:
            _thread.start_new_thread(run, ())
        except RuntimeError as error:  # no more threads
            finish(error)
        return found


def is_temporary(found: Found) -> bool:
    """Return True for a failure after which the same look-up may succeed, such as a lack of open files."""
    if isinstance(found, socket.gaierror):
        return found.errno in TEMPORARY
    return isinstance(found, OSError | MemoryError | RuntimeError)


def look_up(host: str) -> tuple[str, ...] | Exception:
    """Return the addresses of a name in the order of the system, or the exception of the look-up."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except Exception as error:  # gaierror; UnicodeError for a label above 63 characters
        return error
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
