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
PREFIX: Final = "row "


class Effort:
    """The requests that a row needed, redirects and retries included, and its time in seconds."""

    def __init__(self) -> None:
        self.n_requests, self.seconds = 0, 0.0


class CountedDownload(Download):
    """Downloads like `Download`, and remembers the effort of each row until `take`."""

    _efforts: dict[str, Effort]
    _watched: Client | None = None

    def take(self) -> Timings:
        """Return and forget the efforts as timings, `row KEY` -> seconds and requests: notes carry timings along."""
        found, self._efforts = getattr(self, "_efforts", {}), {}
        return {f"{PREFIX}{key}": StageTiming(seconds=e.seconds, rows=float(e.n_requests)) for key, e in found.items()}

    async def _prepare_all(self, rows: Sequence[tuple[str, str | None, bytes | None]], client: Client) -> list[Outcome]:
        self._efforts = getattr(self, "_efforts", {})
        if client is not self._watched:  # after an exception, there is a new one
            self._watched = client
            tracing = aiohttp.TraceConfig()
            tracing.on_request_start.append(count_request)
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


async def count_request(_: aiohttp.ClientSession, __: SimpleNamespace, ___: aiohttp.TraceRequestStartParams) -> None:
    """Count a request for the row of this task."""
    effort = ROW.get()
    if effort is not None:
        effort.n_requests += 1
