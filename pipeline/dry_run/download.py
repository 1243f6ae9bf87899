"""The download stage with a count of the requests and the time of each row."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Final

import aiohttp

from pipeline.download.client import Client
from pipeline.download.failures import FetchError
from pipeline.download.fetch import Request
from pipeline.download.stage import Download, Outcome
from schemas.manifest import StageTiming, Timings

ROW: Final[ContextVar["Effort | None"]] = ContextVar("row", default=None)
"""The row for which the present task sends requests."""
ROW_TIME: Final = "row "
BUSY_TIME: Final = "busy "
"""Prefixes of the names of timings: of a row in all, and of its requests alone."""


class Effort:
    """The requests that a row needed, redirects and retries included, and its time in seconds.

    `busy_seconds` is the part in which a request was under way, without the waits for turns, names and retries.
    """

    def __init__(self) -> None:
        self.n_requests, self.seconds, self.busy_seconds = 0, 0.0, 0.0
        self._since = 0.0

    def begin_request(self) -> None:
        """Count a request, and start its time."""
        self.n_requests += 1
        self._since = time.monotonic()

    def go_on(self) -> None:
        """Add the time since the last event of the request."""
        now = time.monotonic()
        self.busy_seconds, self._since = self.busy_seconds + now - self._since, now


class CountedDownload(Download):
    """Downloads like `Download`, and remembers the effort of each row until `take`."""

    _efforts: dict[str, Effort]
    _watched: Client | None = None

    def take(self) -> Timings:
        """Return and forget the efforts as timings, `row KEY` and `busy KEY`, which the notes on a shard carry along.

        The number of requests is in the place of the number of rows.
        """
        found, self._efforts = getattr(self, "_efforts", {}), {}
        timings: Timings = {}
        for key, effort in found.items():
            n = float(effort.n_requests)
            timings[f"{ROW_TIME}{key}"] = StageTiming(seconds=effort.seconds, rows=n)
            timings[f"{BUSY_TIME}{key}"] = StageTiming(seconds=effort.busy_seconds, rows=n)
        return timings

    async def _prepare_all(self, rows: Sequence[tuple[str, str | None, bytes | None]], client: Client) -> list[Outcome]:
        self._efforts = getattr(self, "_efforts", {})
        if client is not self._watched:  # after an exception, there is a new one
            self._watched = client
            tracing = aiohttp.TraceConfig()
            tracing.on_request_start.append(begin_request)
            for event in (tracing.on_response_chunk_received, tracing.on_request_end, tracing.on_request_exception):
                event.append(continue_request)
            tracing.freeze()
            client.session.trace_configs.append(tracing)
        return await super()._prepare_all(rows, client)

    async def _row(
        self, key: str, request: Request | bytes | FetchError, client: Client, pool: ThreadPoolExecutor
    ) -> Outcome:
        effort, start = self._efforts.setdefault(key, Effort()), time.monotonic()
        ROW.set(effort)  # each row has a task, and thus a context, of its own
        try:
            return await super()._row(key, request, client, pool)
        finally:
            effort.seconds += time.monotonic() - start


async def begin_request(_: aiohttp.ClientSession, __: SimpleNamespace, ___: aiohttp.TraceRequestStartParams) -> None:
    """Count a request for the row of this task."""
    if (effort := ROW.get()) is not None:
        effort.begin_request()


async def continue_request(_: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
    """Note that a request of the row of this task is still under way, or has ended."""
    if (effort := ROW.get()) is not None:
        effort.go_on()
