"""Look-up of host names: in threads of its own, once for all rows of a name, remembered from shard to shard.

Neither asyncio nor aiohttp can do this: uvloop resolves in a pool of four threads, and aiohttp starts a look-up within
the time limit of the request. Here a row waits for its name before it takes a connection, so that a name server that is
slow or silent costs only the rows of its own names.
"""

import _thread
import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

from pipeline.download.addresses import check_addresses

FOUND_S: Final = 600.0
MISSING_S: Final = 60.0
"""How long an address, and the failure of a look-up, are remembered. The answers of getaddrinfo have no times."""

MAX_NAMES: Final = 20_000
"""Number of names that are remembered (about 10 MB)."""

SLOW_S: Final = 1.0
"""A look-up that takes longer gives its place to the next one, up to SLOW_FACTOR times `concurrency` in all."""
SLOW_FACTOR: Final = 8

RETRY_PAUSE_S: Final = 0.5
QUICK_FAILURE_S: Final = 5.0
"""A temporary failure that came within QUICK_FAILURE_S is asked again once; a later one has been retried by libc."""

TEMPORARY: Final = (socket.EAI_AGAIN, socket.EAI_SYSTEM, socket.EAI_MEMORY)


class NameLookupError(Exception):
    """A name has no addresses; the message is the reason."""


@dataclass(frozen=True)
class Answer:
    """The addresses of a name, or the reason why there are none, until a time of the event loop."""

    addresses: tuple[str, ...]
    failure: str
    expires_s: float


class Resolver(AbstractResolver):
    """A resolver with a cache, for one event loop.

    `lookup` finds the addresses of a name. `resolve` hands them to aiohttp, which connects to no others; it raises
    PrivateAddressError if one of them is private, unless the name is in `allowed` (canonical forms).
    """

    def __init__(self, allowed: frozenset[str], concurrency: int, timeout_s: float) -> None:
        self.allowed, self.timeout_s = allowed, timeout_s
        self._answers: dict[str, Answer] = {}
        self._running: dict[str, asyncio.Task[Answer]] = {}
        self._places = asyncio.Semaphore(concurrency)
        self._threads = asyncio.Semaphore(SLOW_FACTOR * concurrency)

    async def lookup(self, host: str) -> tuple[str, ...]:
        """Find the addresses of a name. Raises NameLookupError."""
        answer = self._answers.get(host)
        if answer is None or answer.expires_s < asyncio.get_running_loop().time():
            if host not in self._running:
                self._running[host] = task = asyncio.create_task(self._ask(host))
                task.add_done_callback(lambda _: self._running.pop(host, None))
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
        addresses = answer.addresses if answer is not None and not answer.failure else await self.lookup(host)
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

    async def _ask(self, host: str) -> Answer:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        addresses, failure, is_temporary = await self._ask_once(host)
        if is_temporary and loop.time() - start_s < QUICK_FAILURE_S:
            await asyncio.sleep(RETRY_PAUSE_S)
            addresses, failure, _ = await self._ask_once(host)
        answer = Answer(addresses, failure, loop.time() + (MISSING_S if failure else FOUND_S))
        self._answers.pop(host, None)
        self._answers[host] = answer  # the last, so that the oldest is the first
        if len(self._answers) > MAX_NAMES:
            del self._answers[next(iter(self._answers))]
        return answer

    async def _ask_once(self, host: str) -> tuple[tuple[str, ...], str, bool]:
        """Ask for a name in a thread: return its addresses, or a failure and whether it may pass."""
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
        if not found.done():
            return (), f"no answer in {self.timeout_s:g} s", False
        match found.result():
            case socket.gaierror() as error:
                return (), error.strerror or str(error), error.errno in TEMPORARY
            case Exception() as error:
                return (), f"{type(error).__name__}: {error}", isinstance(error, OSError | RuntimeError)
            case addresses:
                return addresses, "" if addresses else "no addresses", False

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


def look_up(host: str) -> tuple[str, ...] | Exception:
    """Return the addresses of a name in the order of the system, or the exception of the look-up."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except Exception as error:  # gaierror; UnicodeError for a label above 63 characters
        return error
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
