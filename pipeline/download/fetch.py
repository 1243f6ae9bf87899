"""One URL to bytes: redirects by hand, limits while streaming, every failure by its name on the closed list."""

import asyncio
import errno
import socket
import ssl
import zlib
from collections.abc import Iterable
from functools import cache

import aiohttp
from yarl import URL

from pipeline.download.addresses import PrivateAddressError, PublicResolver, check_host
from pipeline.download.config import DownloadConfig
from schemas.table import Drop

REDIRECTS = (301, 302, 303, 307, 308)
INFLATE_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class FetchError(Exception):
    """A URL that gave no image: the row's end, and whether and when another attempt may help."""

    def __init__(self, reason: str, detail: str, is_transient: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}")
        self.drop = Drop(reason, detail[:300])
        self.is_transient = is_transient
        self.retry_after_s = retry_after_s


@cache
def tls_context() -> ssl.SSLContext:
    """One context for the whole process: making one costs 20 ms, more than all the rest of an image."""
    return ssl.create_default_context()


def new_session(config: DownloadConfig) -> aiohttp.ClientSession:
    """Connections kept alive, no cookies, no proxies from the environment, bodies as they travel."""
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
            "User-Agent": f"{config.user_agent_token}/0.1 (image-text dataset builder{contact})",
            "Accept": "image/*,*/*;q=0.5",
            "Accept-Encoding": "identity",
        },
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def fetch(session: aiohttp.ClientSession, text: str, config: DownloadConfig) -> bytes:
    """The body at URL `text`, after as many attempts as the config and the deadline allow. Raises FetchError."""
    url = parse_url(text)
    error = FetchError("timeout", f"{config.deadline_s:g} s in all")
    try:
        async with asyncio.timeout(config.deadline_s):
            for attempt in range(config.retries + 1):
                try:
                    return await attempt_fetch(session, url, config)
                except FetchError as failed:
                    error = failed
                if not error.is_transient or attempt == config.retries:
                    break
                wait_s = max(config.backoff_s * 2**attempt, error.retry_after_s)
                if wait_s > config.deadline_s:
                    break
                await asyncio.sleep(wait_s)
    except TimeoutError:
        pass  # the deadline: the last attempt's own failure says more, if there was one
    raise error


async def attempt_fetch(session: aiohttp.ClientSession, url: URL, config: DownloadConfig) -> bytes:
    """One attempt, with the exceptions of aiohttp and the system turned into FetchError."""
    try:
        async with asyncio.timeout(config.timeout_s):
            return await follow(session, url, config)
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
        what = errno.errorcode.get(number, "") if isinstance(number, int) else ""
        raise FetchError("connection_error", what or type(error).__name__, is_transient=True) from error


async def follow(session: aiohttp.ClientSession, url: URL, config: DownloadConfig) -> bytes:
    """The body behind `url` and its redirects; the address of every hop is checked before it is contacted."""
    for _ in range(config.max_redirects + 1):
        check_url(url, config)
        async with session.get(url, allow_redirects=False) as response:
            if response.status in REDIRECTS and "Location" in response.headers:
                url = parse_url(response.headers["Location"], base=url)
                continue
            if response.status != 200:
                is_transient = response.status == 429 or response.status >= 500
                raise FetchError("http_error", str(response.status), is_transient, retry_after_s(response))
            directive = opt_out(response.headers.getall("X-Robots-Tag", ()), config)
            if directive:
                raise FetchError("opted_out", directive)
            return await read_body(response, config.max_bytes)
    raise FetchError("too_many_redirects", f"more than {config.max_redirects}")


def parse_url(text: str, base: URL | None = None) -> URL:
    """`text`, relative to `base`, as an http(s) URL. Raises FetchError for anything else."""
    try:
        url = URL(text.strip())
        url = base.join(url) if base is not None else url
        if url.scheme not in ("http", "https") or not url.raw_host or not url.port:
            raise ValueError(f"{url.scheme or 'no scheme'}: only http and https are fetched")
        return url.with_fragment(None)
    except ValueError as error:
        raise FetchError("invalid_url", str(error).encode(errors="replace").decode()) from error


def check_url(url: URL, config: DownloadConfig) -> None:
    """Refuse a host that spells out a private address, or any address as a number."""
    try:
        check_host(url.raw_host or "", config.allowed_private_hosts)
    except ValueError as error:
        raise FetchError("invalid_url", str(error)) from error


def retry_after_s(response: aiohttp.ClientResponse) -> float:
    """Seconds the server asks to wait; the date form, rare with images, counts as none."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else 0.0


def opt_out(values: Iterable[str], config: DownloadConfig) -> str | None:
    """The first disallowed directive among X-Robots-Tag lines that concern us, read as img2dataset reads them.

    A line `bot: noai` concerns that bot alone, a line without a name everybody.
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
    """The body, unpacked where the server packed it unasked; never more than `max_bytes` of either are held."""
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
    unpacker = zlib.decompressobj(wbits)
    try:
        body = unpacker.decompress(body, max_bytes)
    except zlib.error as error:
        raise FetchError("undecodable", f"content encoding: {error}") from error
    if unpacker.unconsumed_tail:
        raise too_large
    return body
