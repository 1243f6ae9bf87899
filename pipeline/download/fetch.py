"""Fetching of one URL: explicit redirects, limits during streaming, and a drop reason for every failure."""

import asyncio
import errno
import socket
import ssl
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache

import aiohttp
from yarl import URL

from common.version import hypergrit_version
from pipeline.download.addresses import PrivateAddressError, PublicResolver, check_host
from pipeline.download.config import DownloadConfig
from schemas.table import Drop

REDIRECTS = (301, 302, 303, 307, 308)
INFLATE_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class FetchError(Exception):
    """A failed download: the drop of the row, and whether and when a retry may succeed."""

    def __init__(self, reason: str, detail: str, is_transient: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}")
        self.drop = Drop(reason, detail[:300])
        self.is_transient = is_transient
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Request:
    """The next request to send for a row."""

    url: URL
    remaining_s: float  # seconds until the deadline of the row
    n_redirects: int = 0  # redirects followed to reach this URL

    @property
    def host(self) -> str:
        return self.url.raw_host or ""


@cache
def tls_context() -> ssl.SSLContext:
    """The TLS context of this process. Creating one takes 20 ms, longer than the rest of the work for an image."""
    return ssl.create_default_context()


def new_session(config: DownloadConfig) -> aiohttp.ClientSession:
    """Open an HTTP session: persistent connections, no cookies, no proxies from the environment, no decompression."""
    connector = aiohttp.TCPConnector(
        limit=config.concurrency,
        resolver=PublicResolver(config.allowed_private_hosts),
        ttl_dns_cache=300,
        ssl=tls_context(),
    )
    contact = f"; +{config.contact}" if config.contact else ""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=config.connect_timeout_s),
        headers={
            "User-Agent": f"{config.user_agent_token}/{hypergrit_version()} (image-text dataset builder{contact})",
            "Accept": "image/*,*/*;q=0.5",
            "Accept-Encoding": "identity",
        },
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def fetch(session: aiohttp.ClientSession, request: Request, config: DownloadConfig) -> bytes | Request:
    """Fetch the body of an image, with the retries of the configuration, within the remaining time.

    If the server redirects to another host, return the Request for it, with the remaining time. The caller sends it:
    that host may be busy with other rows, and the wait for a slot must not count against a time limit. Raises
    FetchError.
    """
    start_s = asyncio.get_running_loop().time()
    error = FetchError("timeout", f"{config.deadline_s:g} s in all")
    try:
        async with asyncio.timeout(request.remaining_s):
            for attempt in range(config.retries + 1):
                try:
                    found = await attempt_fetch(session, request, config)
                except FetchError as failure:
                    error = failure
                else:
                    spent_s = asyncio.get_running_loop().time() - start_s
                    return (
                        replace(found, remaining_s=request.remaining_s - spent_s)
                        if isinstance(found, Request)
                        else found
                    )
                wait_s = max(config.backoff_s * 2**attempt, error.retry_after_s)
                if not error.is_transient or attempt == config.retries or wait_s > config.deadline_s:
                    break
                await asyncio.sleep(wait_s)
    except TimeoutError:
        pass  # the deadline passed: the error of the last attempt, if any, is more informative
    raise error


async def attempt_fetch(session: aiohttp.ClientSession, request: Request, config: DownloadConfig) -> bytes | Request:
    """Make one attempt. Raises FetchError, also for the exceptions of aiohttp and the operating system."""
    try:
        async with asyncio.timeout(config.timeout_s):
            return await follow(session, request, config)
    except PrivateAddressError as error:
        raise FetchError("private_address", str(error)) from error
    except aiohttp.ClientConnectorDNSError as error:
        is_transient = error.os_error.errno == socket.EAI_AGAIN
        raise FetchError("dns_error", f"{error.host}: {error.os_error.strerror}", is_transient) from error
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        raise FetchError("tls_error", str(getattr(error, "certificate_error", None) or error)) from error
    except TimeoutError as error:
        raise FetchError("timeout", f"{config.timeout_s:g} s", is_transient=True) from error
    except aiohttp.ClientResponseError as error:
        raise FetchError("connection_error", f"no valid HTTP: {type(error).__name__}") from error
    except aiohttp.InvalidURL as error:
        raise FetchError("invalid_url", str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        number = getattr(error, "errno", None)
        name = errno.errorcode.get(number, "") if isinstance(number, int) else ""
        raise FetchError("connection_error", name or type(error).__name__, is_transient=True) from error


async def follow(session: aiohttp.ClientSession, request: Request, config: DownloadConfig) -> bytes | Request:
    """Send a request and follow its redirects on the same host: return the body, or the first Request to another host.

    The address of each redirect is checked before the request is sent. Raises FetchError and the exceptions of aiohttp.
    """
    url = request.url
    for n in range(request.n_redirects, config.max_redirects + 1):
        if url.raw_host != request.url.raw_host:
            return Request(url, request.remaining_s, n)
        check_url(url, config)
        async with session.get(url, allow_redirects=False) as response:
            if response.status in REDIRECTS and "Location" in response.headers:
                url = parse_url(response.headers["Location"], base=url)
                continue
            if response.status != 200:
                is_transient = response.status == 429 or response.status >= 500
                wait_s = retry_after_s(response.headers.get("Retry-After", ""), datetime.now(UTC))
                raise FetchError("http_error", str(response.status), is_transient, wait_s)
            directive = opt_out(response.headers.getall("X-Robots-Tag", ()), config)
            if directive:
                raise FetchError("opted_out", directive)
            return await read_body(response, config.max_bytes)
    raise FetchError("too_many_redirects", f"more than {config.max_redirects}")


def parse_url(text: str, base: URL | None = None) -> URL:
    """Parse an http(s) URL, which may be relative to `base`. Raises FetchError for anything else."""
    try:
        url = URL(text.strip())
        url = base.join(url) if base is not None else url
        if url.scheme not in ("http", "https") or not url.raw_host or not url.port:
            raise ValueError(f"{url.scheme or 'no scheme'}: only http and https are fetched")
        return url.with_fragment(None)
    except ValueError as error:
        raise FetchError("invalid_url", str(error).encode(errors="replace").decode()) from error


def check_url(url: URL, config: DownloadConfig) -> None:
    """Raise PrivateAddressError if the host is a private address, FetchError for a public one in a legacy spelling."""
    try:
        check_host(url.raw_host or "", config.allowed_private_hosts)
    except ValueError as error:
        raise FetchError("invalid_url", str(error)) from error


def retry_after_s(value: str, now: datetime) -> float:
    """The wait in seconds of a Retry-After header: a number, or a date (RFC 9110, section 10.2.3); else 0."""
    if value.isascii() and value.strip().isdigit():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def opt_out(values: Iterable[str], config: DownloadConfig) -> str | None:
    """The first disallowed directive in the X-Robots-Tag lines that apply to this client, parsed like in img2dataset.

    A line `bot: noai` applies to that bot only, a line without a name to everyone.
    """
    for value in values:
        agent, colon, rest = value.partition(":")
        if colon and agent.strip().lower() != config.user_agent_token.lower():
            continue
        for directive in (rest if colon else value).split(","):
            if directive.strip().lower() in config.disallowed_header_directives:
                return directive.strip().lower()
    return None


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Read a body, and decompress it if the server compressed it although that was not requested.

    Raises FetchError if the compressed or the decompressed body has more than `max_bytes`, where reading stops, or if
    it cannot be decompressed.
    """
    too_large = FetchError("too_many_bytes", f"more than {max_bytes}")
    if (response.content_length or 0) > max_bytes:
        raise too_large
    blocks, total = [], 0
    async for block in response.content.iter_any():
        blocks.append(block)
        total += len(block)
        if total > max_bytes:
            raise too_large
    body = b"".join(blocks)
    wbits = INFLATE_WBITS.get(response.headers.get("Content-Encoding", "").strip().lower())
    if wbits is None:
        return body
    decompressor = zlib.decompressobj(wbits)
    try:
        body = decompressor.decompress(body, max_bytes)
    except zlib.error as error:
        raise FetchError("undecodable", f"content encoding: {error}") from error
    if decompressor.unconsumed_tail:
        raise too_large
    return body
