"""Fetching of rows with the state that a worker keeps from shard to shard: connections, names, hosts, bytes."""

import asyncio
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import uvloop
from yarl import URL

from pipeline.stages.download.addresses import (
    FetchError,
    PrivateAddressError,
    Verdict,
    canonical_host,
    check_addresses,
    check_url,
    is_local_name,
    parse_address,
    proxy_hosts,
)
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.fetch import Contact, Deadline, Request, attempt_fetch, new_session
from pipeline.stages.download.hosts import (
    BudgetError,
    ByteBudget,
    Host,
    HostDeadError,
    Hosts,
    Lease,
    count_open_files,
    machine_error,
    raise_file_limit,
    share_files,
)
from pipeline.stages.download.permits import JobPermits, LocalPermits, PermitAddress, Slots
from pipeline.stages.download.resolver import NameLookupError, Resolver
from pipeline.stages.download.robots import Robots


class Client:
    """Fetches bodies on the running event loop, until `close`.

    Args:
        config: settings.
        permits: address of the server of the job's requests per host; None: this client counts alone.
    """

    def __init__(self, config: DownloadConfig, permits: PermitAddress | None) -> None:
        self.config = config
        shares = share_files(config, raise_file_limit() - count_open_files())
        allowed = config.private_hosts | proxy_hosts(config.proxy)  # rows whose host is the proxy are refused before
        self.resolver = Resolver(allowed, config.dns_concurrency, config.dns_timeout_s, shares.lookups)
        self.budget = ByteBudget(max(config.max_bytes_in_flight, 2 * config.max_bytes))
        # Timers may fire a little early, so a time-out must count as a failure of its whole time.
        patience_s = 0.9 * min(config.connect_timeout_s, config.timeout_s)
        self.hosts = Hosts(config.host_failures, patience_s, time.monotonic)
        self.session = new_session(config, self.resolver, shares.idle)
        self._permits = JobPermits(permits) if permits else LocalPermits(config.concurrency_per_host)
        self._robots = Robots(self._fetch_rules, config.user_agent_token, time.monotonic) if config.robots_txt else None
        self._slots = Slots(shares.requests, self._permits)

    async def close(self) -> None:
        """Close all connections."""
        if isinstance(self._permits, JobPermits):
            self._permits.close()
        await self.resolver.close()
        await self.session.close()

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Fetch the body of an image or of a robots.txt, from one host after the other if it is redirected.

        Args:
            request: the first request of the row.

        Yields:
            The body, whose bytes count in the budget until the context ends.

        Raises:
            FetchError: the drop of the row.
            OSError: this machine lacks open files, memory or threads, or its proxy does not answer.
        """
        while True:
            if self._robots is not None and request.is_image:
                request = replace(request, rules=await self._robots.of(request.url))
            found, lease = await self._fetch(request)
            with lease:
                if isinstance(found, bytes):
                    yield found
                    return
            request = found

    async def _fetch_rules(self, url: URL) -> bytes:
        """Fetch a robots.txt. Raises like `body`."""
        async with self.body(Request(url, Deadline(self.config.deadline_s), is_image=False)) as rules:
            return rules

    async def _fetch(self, request: Request) -> tuple[bytes | Request, Lease]:
        """Fetch from one host with the retries of the configuration. Raises FetchError, and OSError for a lack.

        The row holds a connection during its attempts only, not while it waits for its name, its host, memory or the
        next attempt.
        """
        host, deadline = self.hosts.at(request.host, request.port), request.deadline
        n_bytes = n_retries = 0
        while True:
            await self._resolve(request)
            try:
                return await self._attempt(request, host, n_bytes)
            except BudgetError as error:
                n_bytes = error.n_bytes
                continue
            except HostDeadError as error:
                raise FetchError(error.reason, str(error)) from error
            except FetchError as error:
                # A host that has never answered is not asked again after a time-out.
                is_transient = error.is_transient and (error.drop.reason != "timeout" or host.has_answered)
                pause_s = max(self.config.backoff_s * 2.0 ** min(n_retries, 30), error.retry_after_s)
                if not is_transient or n_retries == self.config.retries or pause_s >= deadline.left_s:
                    if error.lack is not None:
                        raise machine_error(error.lack) from error
                    raise
                n_retries += 1
            with deadline.passing():
                await asyncio.sleep(pause_s)

    async def _resolve(self, request: Request) -> None:
        """Check the host, and look it up if it is a name. Raises FetchError."""
        try:
            check_url(request.url, self.config.private_hosts)
            if parse_address(request.host) is None and self.config.proxy_resolves:
                if is_local_name(request.host) and canonical_host(request.host) not in self.config.private_hosts:
                    raise PrivateAddressError(f"{request.host} is a name of the proxy's own network")
            elif parse_address(request.host) is None:
                check_addresses(request.host, await self.resolver.lookup(request.host), self.config.private_hosts)
        except PrivateAddressError as error:
            raise FetchError("private_address", str(error)) from error
        except NameLookupError as error:
            raise FetchError("dns_error", f"{request.host}: {error}") from error

    async def _attempt(self, request: Request, host: Host, n_bytes: int) -> tuple[bytes | Request, Lease]:
        """Make one attempt with a connection slot and `n_bytes` of memory.

        Raises FetchError, BudgetError and HostDeadError.
        """
        await host.enter()
        try:
            async with self._slots.at(canonical_host(request.host)):
                lease = await self.budget.lease(n_bytes)
                start_s = time.monotonic()
                try:
                    host.start()
                    with request.deadline.passing():
                        found = await attempt_fetch(self.session, request, self.config, lease, Contact(host))
                except BaseException as error:
                    lease.release()
                    if isinstance(error, FetchError) and error.lack is None:
                        if error.verdict is Verdict.SILENT:
                            host.failed(start_s, error.drop.reason)
                        elif error.verdict is Verdict.ANSWERED:
                            host.answered()
                    raise
                host.answered()
                return found, lease
        finally:
            host.leave()


# The event loop of a download stage: it lives as long as the stage, and connections and host names with it.

Result = TypeVar("Result")


class Worker:
    """A Client on an event loop of its own, opened when it is first needed.

    The loop runs only within `run`. A process that inherits the object by fork, or receives it by pickle, opens its own.
    """

    def __init__(self, config: DownloadConfig, permits: PermitAddress | None) -> None:
        self._config, self._permits = config, permits
        self._open: _Open | None = None
        self._lock = threading.Lock()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result:
        """Run `work(client)` to its end. After an exception, the next call starts with a new client."""
        with self._lock:
            if self._open is None or self._open.pid != os.getpid():
                self._open = _Open(self._config, self._permits)
            try:
                return self._open.runner.run(work(self._open.client))
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def __getstate__(self) -> tuple[DownloadConfig, PermitAddress | None]:
        return self._config, self._permits

    def __setstate__(self, state: tuple[DownloadConfig, PermitAddress | None]) -> None:
        self.__init__(*state)  # type: ignore[misc]


class _Open:
    """A loop and its client; closed by `close`, when the object is collected, or at the end of the process."""

    def __init__(self, config: DownloadConfig, permits: PermitAddress | None) -> None:
        self.pid = os.getpid()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.runner.get_loop()  # raises for a lack of open files
        self.client = self.runner.run(_new_client(config, permits))
        self.close = weakref.finalize(self, _close, self.runner, self.client, self.pid)


async def _new_client(config: DownloadConfig, permits: PermitAddress | None) -> Client:
    return Client(config, permits)


def _close(runner: asyncio.Runner, client: Client, pid: int) -> None:
    if os.getpid() != pid:  # after a fork, loop and connections belong to the parent
        return

    def run() -> None:
        runner.run(client.close())
        runner.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        run()
    else:  # collected as garbage while another loop runs in this thread
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
