"""The HTTP session of a worker."""

import ssl
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, Protocol

import aiohttp
from aiohttp.client_proto import ResponseHandler

from common.version import hypergrit_version
from pipeline.download.config import DownloadConfig
from pipeline.download.resolver import Resolver

IDLE_S: Final = 5.0
"""Time for which an idle connection is kept."""

MAX_INTERIM: Final = 16
"""Number of interim responses (100 Continue, 103 Early Hints) before the final one."""


class Watcher(Protocol):
    """Whoever wants to know that a request has got a connection; passed as `trace_request_ctx`."""

    def connected(self) -> None:
        """Note a new connection."""
        ...

    def reused(self) -> None:
        """Note an idle connection, on which the host has answered before."""
        ...


class InterimFloodError(Exception):
    """A server sends interim responses without end."""


class BoundedHandler(ResponseHandler):
    """A connection that ends after MAX_INTERIM interim responses, which aiohttp would collect without limit.

    The headers of each response are limited by aiohttp, to 128 of 8 KB.
    """

    _n_interim = 0

    def set_response_params(self, **params: Any) -> None:
        self._n_interim = 0
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        if 100 <= data[0].code < 200:
            self._n_interim += 1
            if self._n_interim > MAX_INTERIM:
                if self._n_interim == MAX_INTERIM + 1:
                    self.set_exception(InterimFloodError())
                    self.transport and self.transport.abort()  # type: ignore[func-returns-value]
                return
        super().feed_data(data, size)


class Connector(aiohttp.TCPConnector):
    """A TCPConnector whose connections are BoundedHandlers, and that keeps at most `max_idle` idle ones."""

    def __init__(self, max_idle: int, **options: Any) -> None:
        super().__init__(**options)
        self._max_idle = max_idle
        self._factory = lambda: BoundedHandler(loop=self._loop)  # type: ignore[assignment]

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        is_full = sum(map(len, self._conns.values())) >= self._max_idle
        super()._release(key, protocol, should_close=should_close or is_full)


@cache
def tls_context() -> ssl.SSLContext:
    """The TLS context of this process. Creating one takes 20 ms, longer than the rest of the work for an image."""
    return ssl.create_default_context()


def new_session(config: DownloadConfig, resolver: Resolver, max_idle: int) -> aiohttp.ClientSession:
    """Open an HTTP session: persistent connections, no cookies, no proxy but that of `config`, no decompression.

    At most `max_idle` connections are kept idle.
    """
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(_on_connected)
    tracing.on_connection_reuseconn.append(_on_reused)
    contact = f"; +{config.contact}" if config.contact else ""
    return aiohttp.ClientSession(
        connector=Connector(
            max_idle,
            limit=0,  # slots.py limits the connections
            resolver=resolver,
            use_dns_cache=False,  # the resolver has its own
            keepalive_timeout=IDLE_S,
            ssl=tls_context(),
            timeout_ceil_threshold=float("inf"),
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=config.connect_timeout_s, ceil_threshold=float("inf")),
        headers={
            "User-Agent": f"{config.user_agent_token}/{hypergrit_version()} (image-text dataset builder{contact})",
            "Accept": "image/*,*/*;q=0.5",
            "Accept-Encoding": "identity",
        },
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        proxy=config.proxy,
        trace_configs=[tracing],
    )


async def _on_connected(
    session: aiohttp.ClientSession, context: SimpleNamespace, _: aiohttp.TraceConnectionCreateEndParams
) -> None:
    context.trace_request_ctx.connected()


async def _on_reused(
    session: aiohttp.ClientSession, context: SimpleNamespace, _: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx.reused()
