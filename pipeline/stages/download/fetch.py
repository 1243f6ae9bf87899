"""One attempt to fetch a URL: redirects on the same host, limits during streaming, a drop reason for every failure."""

import asyncio
import errno
import os
import re
import ssl
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError
from yarl import URL

from hypergrit_common.errors import MACHINE_ERRORS
from hypergrit_common.image_header import is_picture
from hypergrit_common.version import hypergrit_version
from pipeline.stages.download.addresses import FetchError, PrivateAddressError, Verdict, check_url, parse_url
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.hosts import Host, Lease, error_number
from pipeline.stages.download.resolver import NameLookupError, Resolver
from pipeline.stages.download.robots import Rules

# Response headers with a meaning for the downloader: Retry-After, and those by which a server opts out.


def retry_after_s(value: str, now: datetime) -> float:
    """The wait in seconds of a Retry-After header: a number, or a date (RFC 9110, section 10.2.3); else 0."""
    if value.isascii() and value.strip().isdigit():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - now).total_seconds())
    except Exception:  # ValueError, but also OverflowError and others, by the version of Python
        return 0.0


VALUED: Final = frozenset({"max-snippet", "max-image-preview", "max-video-preview", "unavailable_after"})
"""Directives with a value behind a colon, which are no names of bots."""


def opt_out(values: Iterable[str], token: str, directives: Collection[str]) -> str | None:
    """The first of `directives` in the X-Robots-Tag lines that apply to the client `token`.

    A name before a colon (`bot: noai, noindex`) addresses what follows in its line to that bot. Before it, and after
    the name `*`, a line applies to everyone.
    """
    for value in values:
        applies = True
        for part in value.split(","):
            name, colon, rest = (text.strip().lower() for text in part.partition(":"))
            if colon and name not in VALUED and not name[:1].isdigit():
                applies, name = name in ("*", token.lower()), rest
            if applies and name in directives:
                return name
    return None


def refused_usage(values: Iterable[str], categories: Collection[str]) -> str | None:
    """The first of `categories` that Content-Usage lines name, if they refuse it: `train-ai=n` (draft-ietf-aipref-attach).

    The lines are one dictionary of RFC 9651, in which the last value of a key counts.
    """
    parts = (part.partition("=") for value in values for part in value.lower().split(","))
    last = {key.strip(): value.partition(";")[0].strip() for key, _, value in parts}
    stated = next((name for name in categories if last.get(name) in ("y", "n")), None)
    return stated if stated is not None and last[stated] == "n" else None


def refusal(response: aiohttp.ClientResponse, config: DownloadConfig) -> FetchError | None:
    """The error for a response whose server does not allow this use of its body, None if it does."""
    headers = response.headers
    tags = headers.getall("X-Robots-Tag", ())
    if directive := opt_out(tags, config.user_agent_token, config.disallowed_header_directives):
        return FetchError("opted_out", directive)
    if headers.get("tdm-reservation", "").strip() == "1":
        return FetchError("tdm_reserved", "tdm-reservation: 1")
    if category := refused_usage(headers.getall("Content-Usage", ()), config.disallowed_usage):
        return FetchError("usage_refused", f"{category}=n")
    return None


# The HTTP session of a worker.

IDLE_S: Final = 5.0
"""Time for which an idle connection is kept."""

MAX_INTERIM: Final = 16
"""Number of interim responses (100 Continue, 103 Early Hints) before the final one."""


MAX_HEAD: Final = 300_000
"""Bytes of the status line and all headers of a response, as in curl."""
MAX_LINE: Final = 65_536
"""Bytes of a header, and of the line before a chunk, as in urllib."""
HEAD_END: Final = re.compile(rb"\n\r?\n")
# Servers are hostile, and a regex holds the event loop: all of these take linear time.
STATUS_LINE: Final = re.compile(rb"HTTP/(\d(?:\.\d+)?)\s+(\d{3})(?!\S)")
FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*(.*)", re.DOTALL)
LENGTH: Final = re.compile(rb"\+?(\d{1,4000})")  # Python converts 4300 digits
CHUNK: Final = re.compile(rb"\+?(?:0[xX])?([0-9a-fA-F]+)[ \t]*(?:;.*)?", re.DOTALL)


def tidy_head(head: bytes) -> tuple[bytes, int | None]:
    """Return the head of a response as aiohttp's strict parser accepts it (RFC 9112), and the number of bytes of the body.

    Folded lines are joined, blanks before a colon removed, and lines without a name left out. One Content-Length is kept,
    none that is no number or stands beside a chunked body. The number is None if the head does not tell it.
    """
    status, *lines = re.sub(rb"\r?\n[ \t]+", b" ", head).translate(None, b"\0").strip().split(b"\n")
    if found := STATUS_LINE.match(status):
        status = b"HTTP/1.%d %s" % (found[1] not in (b"1", b"1.0"), found[2])
    fields = [field.groups() for line in lines if (field := FIELD.fullmatch(line.strip().replace(b"\r", b" ")))]
    kept = [field for field in fields if field[0].lower() not in (b"content-length", b"transfer-encoding")]
    codings = b",".join(value for name, value in fields if name.lower() == b"transfer-encoding").lower()
    if codings.rpartition(b",")[2].strip() == b"chunked":
        kept, lengths = [*kept, (b"Transfer-Encoding", b"chunked")], list[int]()
    else:
        values = [value for name, value in fields if name.lower() == b"content-length"]
        parts = (part.strip() for value in values for part in value.split(b","))
        lengths = sorted({int(length[1]) for part in parts if (length := LENGTH.fullmatch(part))})
        kept += [(b"Content-Length", b"%d" % length) for length in lengths]  # different ones are refused
    return b"\r\n".join([status.strip(), *map(b": ".join, kept), b"", b""]), lengths[0] if lengths else None


class TolerantHandler(ResponseHandler):
    """A connection that accepts what urllib and curl do: odd heads and chunks, and bytes behind a body, which are left out.

    It ends after MAX_INTERIM interim responses, which aiohttp would collect without limit, and at a head above MAX_HEAD.
    """

    _n_interim = 0
    _head: bytes | None = None  # what has come of a head; None: a body comes
    _left: int | None = None  # bytes of the body that are to come, None if its head did not tell
    _chunk: int | None = None  # bytes of the chunk that are to come, None if the body has no chunks
    _line = b""  # what has come of the line before a chunk or behind it

    def set_response_params(self, **params: Any) -> None:
        self._n_interim, self._head, self._left, self._line = 0, b"", None, b""
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        while self._head is not None and data:
            start, self._head = max(len(self._head) - 3, 0), self._head + data
            end = HEAD_END.search(self._head, start)
            size = end.end() if end else len(self._head)
            if size > MAX_HEAD:
                self._fail(f"more than {MAX_HEAD} bytes of headers")
                return
            if end is None:
                return
            (head, self._left), data = tidy_head(self._head[:size]), self._head[size:]
            self._head = b"" if head[9:10] == b"1" else None
            if head[9:12] in (b"204", b"304"):
                self._left = 0
            super().data_received(head)
            if self._head is None and not data:
                return
        rest = b""
        if self._left is not None:
            data, rest = data[: self._left], data[self._left :]
            self._left -= len(data)
        elif self._chunk is not None:
            data = self._reframe(data)
        super().data_received(data)
        if rest and self.transport is not None:
            self.transport.close()

    def _reframe(self, data: bytes) -> bytes:
        """Write the sizes of chunks as RFC 9112 wants them; the parser names what is wrong with other lines."""
        parts, start = list[bytes](), 0
        while start < len(data) and self._left is None:
            end = start + self._chunk if self._chunk else data.find(b"\n", start) + 1 or len(data)
            part, start = data[start:end], end
            if self._chunk:
                self._chunk -= len(part)
                parts.append(part)
                continue
            self._line += part
            if len(self._line) > MAX_LINE:
                self._fail(f"more than {MAX_LINE} bytes in the line of a chunk")
                return b""
            if part.endswith(b"\n"):
                line, self._line = self._line.strip(), b""
                size = CHUNK.fullmatch(line)
                self._chunk = int(size[1], 16) if size else 0
                parts.append(b"%x\r\n" % self._chunk if size else line + b"\r\n")
                if size and not self._chunk:  # the end: only behind a blank line is another answer certain
                    parts.append(b"\r\n")
                    self._left, self._should_close = 0, self._should_close or data[start:] != b"\r\n"
        return b"".join(parts)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        # aiohttp tells an error of a body only to who waits for a head, and not to who reads that body.
        if isinstance(exc, HttpProcessingError) and self._payload is not None and not self._payload.is_eof():
            self._payload.set_exception(exc)

    def feed_data(self, data: Any, size: int = 0) -> None:
        self._chunk = 0 if data[0].chunked else None
        if 100 <= data[0].code < 200:
            self._n_interim += 1
            if self._n_interim > MAX_INTERIM:
                if self._n_interim == MAX_INTERIM + 1:
                    self._fail("endless interim responses")
                return
        super().feed_data(data, size)

    def _fail(self, message: str) -> None:
        self.set_exception(HttpProcessingError(message=message))
        self.transport and self.transport.abort()  # type: ignore[func-returns-value]


class Connector(aiohttp.TCPConnector):
    """A TCPConnector whose connections are TolerantHandlers, and that keeps at most `max_idle` idle ones."""

    def __init__(self, max_idle: int, **options: Any) -> None:
        super().__init__(**options)
        self._max_idle = max_idle
        self._factory = lambda: TolerantHandler(loop=self._loop)  # type: ignore[assignment]

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
            limit=0,  # Slots limits the connections
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
        max_line_size=MAX_LINE,
        max_field_size=MAX_LINE,
        max_headers=MAX_HEAD,
        auto_decompress=False,
        proxy=config.proxy or None,
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


REDIRECTS: Final = (301, 302, 303, 307, 308)
GZIP: Final = b"\x1f\x8b"
AUTOMATIC, RAW = 47, -15  # wbits of zlib: a header of gzip or zlib, and none
MAX_CODINGS: Final = 3  # compressions of a body, one within the other
MAX_MEMBERS: Final = 100  # of gzip, one behind the other


class Deadline:
    """The time that is left for the attempts of a row and the pauses between them."""

    def __init__(self, limit_s: float) -> None:
        self.left_s = limit_s

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let the time pass within the context."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            self.left_s -= time.monotonic() - start_s


@dataclass(frozen=True)
class Request:
    """The next request to send for a row."""

    url: URL
    """Checked by `parse_url`."""
    deadline: Deadline
    """The time that is left to the row."""
    n_redirects: int = 0  # redirects followed to reach this URL
    rules: Rules | None = None  # the robots.txt of the host, if the job respects it
    is_image: bool = True  # False: a robots.txt, for which opt-outs have no meaning

    @property
    def host(self) -> str:
        """The name or address, without brackets."""
        return self.url.raw_host or ""

    @property
    def port(self) -> int:
        """The port, that of the scheme if the URL names none."""
        return self.url.port or 0


class Contact:
    """The connection of an attempt, as `trace_request_ctx`: it is noted for its host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.is_connected = False

    def connected(self) -> None:
        """Note a new connection."""
        self.is_connected = True
        self._host.connected()

    def reused(self) -> None:
        """Note an idle connection, on which the host has answered before."""
        self.is_connected = True
        self._host.reused()


async def attempt_fetch(
    session: aiohttp.ClientSession, request: Request, config: DownloadConfig, lease: Lease, contact: Contact
) -> bytes | Request:
    """Make one attempt, within `timeout_s` and the remaining time of the row.

    Return the body, or the Request for the host to which the server redirects. Raises FetchError, also for the
    exceptions of aiohttp and the operating system, and BudgetError.
    """
    limit_s = min(config.timeout_s, request.deadline.left_s)
    try:
        async with asyncio.timeout(limit_s):
            return await follow(session, request, config, lease, contact)
    except PrivateAddressError as error:
        raise FetchError("private_address", str(error)) from error
    except NameLookupError as error:
        if config.proxy:
            raise proxy_error("its name cannot be resolved") from error
        raise FetchError("dns_error", f"{request.host}: {error}") from error
    except aiohttp.ClientHttpProxyError as error:
        is_host = error.status >= 500  # the proxy cannot reach the host; other codes are between us and the proxy
        detail = f"the proxy answered {error.status}"
        verdict = Verdict.SILENT if is_host else Verdict.ANSWERED
        raise FetchError("connection_error", detail, is_transient=is_host, verdict=verdict) from error
    except aiohttp.ClientProxyConnectionError as error:
        raise proxy_error("no connection") from error
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        detail = str(getattr(error, "certificate_error", None) or error)
        raise FetchError("tls_error", detail, verdict=Verdict.SILENT) from error
    except TimeoutError as error:
        # The time of the row, which other hosts may have used up, says nothing about this one.
        full_s = min(config.timeout_s, config.deadline_s)
        if contact.is_connected:
            detail = f"{config.timeout_s:g} s" if limit_s == config.timeout_s else f"{config.deadline_s:g} s in all"
            verdict = Verdict.SILENT if limit_s >= full_s else Verdict.NOTHING
            raise FetchError("timeout", detail, is_transient=True, verdict=verdict) from error
        # Not repeated: TCP has sent several packets meanwhile, and a dead host would occupy a connection again.
        detail = f"no connection in {min(limit_s, config.connect_timeout_s):g} s"
        verdict = Verdict.SILENT if limit_s >= min(full_s, config.connect_timeout_s) else Verdict.NOTHING
        raise FetchError("timeout", detail, verdict=verdict) from error
    except (HttpProcessingError, aiohttp.ClientResponseError) as error:
        raise FetchError("connection_error", f"no valid HTTP: {message_of(error)}") from error
    except (aiohttp.ClientError, OSError) as error:
        number = error_number(error)
        name = errno.errorcode.get(number, "") or message_of(error)
        # A machine without IPv6 reports EADDRNOTAVAIL for each IPv6 address: no lack of ports.
        is_lack = number in MACHINE_ERRORS and number != errno.EADDRNOTAVAIL
        lack = OSError(number, os.strerror(number)) if is_lack else None
        raise FetchError("connection_error", name, is_transient=True, verdict=Verdict.SILENT, lack=lack) from error


async def follow(
    session: aiohttp.ClientSession, request: Request, config: DownloadConfig, lease: Lease, contact: Contact
) -> bytes | Request:
    """Send a request and follow its redirects on the same host and port.

    Return the body, or the first Request to another host. The address of each redirect is checked before the request is
    sent. Raises FetchError and the exceptions of aiohttp.
    """
    url = request.url
    for n in range(request.n_redirects, config.max_redirects + 1):
        if (url.raw_host, url.port) != (request.url.raw_host, request.url.port):
            return replace(request, url=url, n_redirects=n, rules=None)
        check_url(url, config.private_hosts)
        if request.rules is not None and not request.rules.allows(url):
            raise FetchError("robots_txt", url.raw_path)
        headers = config.headers_for(url)
        async with session.get(url, headers=headers, allow_redirects=False, trace_request_ctx=contact) as response:
            is_redirect = response.status in REDIRECTS and "Location" in response.headers
            refused = refusal(response, config) if request.is_image else None
            is_success = 200 <= response.status < 300
            if refused is not None and (is_redirect or is_success):
                raise refused
            if is_redirect:
                url = parse_url(response.headers["Location"], url)
                continue
            body = await read_body(response, config.max_bytes, lease) if is_success and is_whole(response) else None
            # A proxy that transforms answers 203, for instance; but a status other than 200 may also stand for no picture.
            is_expected = response.status == 200 or not request.is_image
            if body is None or not (is_expected or is_picture(body)):
                is_transient = response.status == 429 or response.status >= 500
                wait_s = retry_after_s(response.headers.get("Retry-After", ""), datetime.now(UTC))
                raise FetchError("http_error", str(response.status), is_transient=is_transient, retry_after_s=wait_s)
            return body
    raise FetchError("too_many_redirects", f"more than {config.max_redirects}")


def message_of(error: Exception) -> str:
    """Return what an exception of aiohttp, or the one behind it, says, without the bytes that it quotes."""
    texts = (getattr(source, "message", None) for source in (error.__cause__, error))
    text = next((text for text in texts if isinstance(text, str) and text), "") or str(error) or type(error).__name__
    return " ".join(text.partition("\n\n")[0].split()).rstrip(":")


def proxy_error(reason: str) -> FetchError:
    """Return the error for a proxy that cannot be reached, for which no row is to blame."""
    lack = OSError(errno.ENETDOWN, f"the proxy cannot be reached ({reason})")
    return FetchError("connection_error", f"proxy: {reason}", is_transient=True, lack=lack)


def too_many_bytes(limit: int) -> FetchError:
    return FetchError("too_many_bytes", f"more than {limit}")


def is_whole(response: aiohttp.ClientResponse) -> bool:
    """Return False for a body that is a part of another, as Content-Range tells."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", "").strip()[:99])
    return response.status != 206 or found is None or (int(found[1]) == 0 and found[3] in ("*", str(int(found[2]) + 1)))


async def read_body(response: aiohttp.ClientResponse, max_bytes: int, lease: Lease) -> bytes:
    """Read a body, and decompress it if the server compressed it although that was not requested.

    Raises FetchError if the compressed or the decompressed body has more than `max_bytes`; reading stops there. Raises
    BudgetError if there is no room for it now.
    """
    declared = response.content_length or 0
    if declared > max_bytes:
        raise too_many_bytes(max_bytes)
    codings = ",".join(response.headers.getall("Content-Encoding", ())).lower()
    need = 2 * max_bytes if codings else declared or max_bytes
    blocks, total = [], 0
    async for block in response.content.iter_any():
        total += len(block)
        if total > max_bytes:
            raise too_many_bytes(max_bytes)
        lease.grow_to(total, need)
        blocks.append(block)
    body = b"".join(blocks)
    for _ in range(MAX_CODINGS):
        # Servers name encodings that they do not use, and use others that they do not name: the first bytes tell.
        if is_picture(body) or not (body.startswith(GZIP) or "gzip" in codings or "deflate" in codings):
            break
        if (inflated := inflate(body, max_bytes)) is None:
            break
        lease.grow_to(total + len(inflated), 2 * max_bytes)
        body = inflated
    return body


def inflate(body: bytes, max_bytes: int) -> bytes | None:
    """Decompress gzip of one or more members, zlib or raw deflate; return None if a body without a mark is none of them.

    Raises FetchError for damaged gzip and for more than `max_bytes`.
    """
    for wbits in (AUTOMATIC, RAW):
        inflated, rest, n = b"", body, 0
        try:
            while rest and (not inflated or rest.startswith(GZIP)):
                if (n := n + 1) > MAX_MEMBERS:  # each copies the rest
                    raise FetchError("undecodable", f"content encoding: more than {MAX_MEMBERS} members of gzip")
                decompressor = zlib.decompressobj(wbits)
                inflated += decompressor.decompress(rest, max_bytes + 1 - len(inflated))
                if len(inflated) > max_bytes:
                    raise too_many_bytes(max_bytes)
                rest = decompressor.unused_data
            return inflated
        except zlib.error as error:
            if body.startswith(GZIP):
                raise FetchError("undecodable", f"content encoding: {error}") from error
    return None
