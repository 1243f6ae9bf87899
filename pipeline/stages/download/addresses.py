"""Restriction of downloads to public addresses, whatever their spelling."""

import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final

from yarl import URL

from hypergrit_common.errors import UserError
from schemas.table import Drop

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

SPECIAL_V4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # Azure's platform services: not in a registry, but the same address in every network
    )
)
"""IANA's registries of special-purpose and multicast IPv4 addresses: no web server has one of these."""

GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
"""The unicast addresses that IANA has given out; all others are special or reserved."""

SPECIAL_V6: Final = tuple(
    ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20")
)
"""IANA's special-purpose IPv6 addresses within GLOBAL_V6, without 6to4."""

NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class PrivateAddressError(Exception):
    """The host of a URL has an address that is not public.

    This is not a subclass of OSError, because aiohttp would convert that to a DNS error.
    """


class NumericHostError(ValueError):
    """The host is a public address in a legacy numeric spelling (2130706433, 0x7f.1), which can evade filters."""


def is_public(address: Address) -> bool:
    """True for a public unicast address; an IPv6 address that embeds an IPv4 address is as public as that.

    The ranges are written out here, because those of `ipaddress` depend on the version of Python.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in SPECIAL_V4)
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        return is_public(address.sixtofour)
    return address in GLOBAL_V6 and not any(address in network for network in SPECIAL_V6)


@lru_cache(10_000)
def canonical_host(host: str) -> str:
    """A host as in a parsed URL: lower case, IDNA, without brackets, without the final dot of a name.

    >>> canonical_host("Bücher.Example."), canonical_host("[0:0::1]")
    ('xn--bcher-kva.example', '::1')
    """
    bare = host.strip().removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    bare = bare.removesuffix(".").lower()
    try:
        return bare if bare.isascii() else bare.encode("idna").decode()
    except UnicodeError:  # not a name at all: such a host equals no other
        return bare


def canonical_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """The canonical forms of host names and addresses."""
    return frozenset(canonical_host(host) for host in hosts)


@lru_cache(10_000)
def parse_address(host: str) -> Address | None:
    """The IP address that a host is, without its zone; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


@lru_cache(10_000)
def numeric_address(host: str) -> Address | None:
    """The IPv4 address in one of the legacy numeric spellings, which the C library accepts."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):  # ValueError: not ASCII, or a null character
        return None


def check_host(host: str, allowed: Collection[str]) -> None:
    """Check a host if it is an address; host names and `allowed` hosts (canonical forms) are accepted.

    Raises PrivateAddressError if the address is not public, NumericHostError for a public one in a legacy numeric
    spelling.
    """
    if canonical_host(host) in allowed:
        return
    address = parse_address(host)
    numeric = numeric_address(host) if address is None else None
    if address is not None and not is_public(address):
        raise PrivateAddressError(str(address))
    if numeric is not None and not is_public(numeric):
        raise PrivateAddressError(f"{host} is {numeric}")
    if numeric is not None:
        raise NumericHostError(f"{host} is {numeric} written as a number")


def check_addresses(host: str, addresses: Iterable[str], allowed: Collection[str]) -> None:
    """Raise PrivateAddressError if a name resolves to an address that is not public, unless it is `allowed`."""
    if canonical_host(host) in allowed:
        return
    for address in addresses:
        if not is_public(ipaddress.ip_address(address.partition("%")[0])):
            raise PrivateAddressError(f"{host} is {address}")


# Extra headers and the proxy of downloads. Both may hold secrets: no message repeats their values.

TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
RESERVED: Final = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "upgrade", "expect", "accept-encoding", "range",
     "user-agent", "proxy-authorization"}
)  # fmt: skip
"""Headers that this client sets, or whose responses it would not understand."""
ALL: Final = "*"
LOCAL_SUFFIXES: Final = (".localhost", ".local", ".internal", ".home.arpa")

Headers = Mapping[str, Mapping[str, str]]
"""Origin, or `ALL` -> headers."""


def check_headers(headers: Headers) -> None:
    """Raise UserError for a key that is no origin, and for a header that cannot be sent."""
    for origin, values in headers.items():
        if origin != ALL:
            origin_of(origin)
        for name, value in values.items():
            if not TOKEN.fullmatch(name) or name.lower() in RESERVED:
                raise UserError(f"headers of {origin}: {name!r:.80} cannot be set; give another name of a header")
            if not value.isprintable() or not value.isascii():
                raise UserError(f"headers of {origin}: the value of {name} is not one line of printable ASCII")


def origin_of(text: str) -> URL:
    """Return the origin that a key of `headers` names. Raises UserError."""
    try:
        url = URL(text)
        if url.scheme in ("http", "https") and url.raw_host and str(url) in (str(url.origin()), f"{url.origin()}/"):
            return url.origin()
    except ValueError:
        pass
    raise UserError('headers has a key that is no origin; write them as {"https://example.org": {NAME: VALUE}}')


def headers_by_origin(headers: Headers) -> dict[URL | None, dict[str, str]]:
    """Return the headers to send by origin, those for all others under None."""
    common = dict(headers.get(ALL, {}))
    found: dict[URL | None, dict[str, str]] = {None: common}
    for key, values in headers.items():
        if key != ALL:
            found[origin_of(key)] = {**common, **values}
    return found


def check_proxy(proxy: str | None) -> None:
    """Raise UserError for a proxy that is no http(s) URL."""
    try:
        url = URL(proxy or "http://proxy")
        is_valid = url.scheme in ("http", "https") and bool(url.raw_host) and url.path in ("", "/") and not url.query
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UserError("proxy is not a URL such as http://proxy.example.org:3128; give one of http or https")


def proxy_hosts(proxy: str | None) -> frozenset[str]:
    """Return the host of the proxy, which may have a private address, in its canonical form."""
    return canonical_hosts([URL(proxy).raw_host or ""]) if proxy else frozenset()


def is_local_name(host: str) -> bool:
    """Return True for a name that another machine would resolve to one of its own network: without a dot, or local."""
    name = host.rstrip(".").lower()
    return "." not in name or name.endswith(LOCAL_SUFFIXES)


# The failure of a download.


class Verdict(Enum):
    """Evidence of a failed attempt about its host."""

    ANSWERED = "it sent a complete response, or was not asked"
    SILENT = "it sent none, although it had the full time, or it broke off"
    NOTHING = "it sent none, but the attempt was cut short for a reason that is not its own"


class FetchError(Exception):
    """A failed download: the drop of the row, and whether and when a retry may succeed.

    Args:
        reason: drop reason of `download`.
        detail: what explains it; the first 300 characters are kept.
        is_transient: True if another attempt may succeed.
        retry_after_s: least time before that attempt, in seconds.
        verdict: what the attempt says about the host, which may be dead.
        lack: what this machine lacked (open files, memory, its proxy), which is no fault of the row.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        is_transient: bool = False,
        retry_after_s: float = 0.0,
        verdict: Verdict = Verdict.ANSWERED,
        lack: OSError | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.drop = Drop(reason, detail[:300])
        self.is_transient, self.retry_after_s = is_transient, retry_after_s
        self.verdict, self.lack = verdict, lack


# Parsing and checking of URLs from the input and from redirects, which are untrusted.

MAX_CHARACTERS: Final = 16_000
"""Longest URL; servers and proxies accept 8,000 to 16,000 characters."""


BAD_PORTS: Final = frozenset(
    {0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109, 110,
     111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530, 531, 532, 540,
     548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000,
     6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080}
)  # fmt: skip
"""The ports that browsers refuse (WHATWG Fetch, "bad port"): a service there may take a request for its own commands."""


REMOVED: Final = str.maketrans("", "", "\t\r\n")
"""Characters that are left out of URLs (WHATWG URL)."""
NOT_SENT: Final = re.compile(rb"[^\x21-\x7e]")
"""The bytes that the request line of HTTP cannot carry."""
SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
BEHIND_HOST: Final = re.compile(r"[^/?#]*//[^/?#]*([^?#]*)(\??)([^#]*)")
"""Path, mark and query of an absolute URL."""


def parse_url(text: str, base: URL | None = None) -> URL:
    """Parse an http(s) URL, which may be relative to `base`. Raises FetchError for anything else.

    Path and query are sent as they are written, since servers sign or compare the spelling; only bytes that HTTP cannot
    carry are escaped. URLs with a user name or a password are refused, so that neither is ever sent or written, and
    BAD_PORTS.
    """
    text = text.strip().translate(REMOVED)
    if len(text) > MAX_CHARACTERS:
        raise FetchError("invalid_url", f"{len(text)} characters, more than {MAX_CHARACTERS}")
    try:
        text = text if base is None else resolve(text, base)
        url = URL(text)
        if "@" in url.raw_authority:
            raise FetchError("invalid_url", "user name or password in the URL")
        behind = BEHIND_HOST.match(text)
        if behind is not None and (str(url) != text or "#" in text):
            path, mark, query = map(escape, behind.groups())
            # Parsed anew, and only then checked. yarl would leave out an empty query that is not part of the path.
            path = (path or "/") + mark * (not query)
            url = URL.build(scheme=url.scheme, authority=url.raw_authority, path=path, query_string=query, encoded=True)
        if url.scheme not in ("http", "https") or not url.raw_host:
            raise ValueError(f"{url.scheme or 'no scheme'}: only http and https with a host are fetched")
        if url.port in BAD_PORTS:
            raise FetchError("invalid_url", f"port {url.port}, which browsers refuse")
        return url
    except FetchError:
        raise
    except Exception as error:  # ValueError, but the parsers raise IndexError and others too
        # A message with an @ may quote a password.
        detail = str(error) if "@" not in str(error) else f"{type(error).__name__} in the URL's host"
        raise FetchError("invalid_url", detail.encode(errors="replace").decode()) from None


def resolve(reference: str, base: URL) -> str:
    """Return a reference as an absolute URL (RFC 3986, section 5.2.2, as browsers do), its spelling unchanged."""
    reference = reference.partition("#")[0]
    if scheme := SCHEME.match(reference):
        if scheme[0].lower() != f"{base.scheme}:" or reference.startswith("//", scheme.end()):
            return reference
        reference = reference[scheme.end() :]
    if reference.startswith("/"):
        return f"{base.scheme}:{reference}" if reference.startswith("//") else f"{base.origin()}{reference}"
    path, mark, query = reference.partition("?")
    return f"{URL(str(base).partition('?')[0], encoded=True).join(URL(path, encoded=True))}{mark}{query}"


def escape(text: str) -> str:
    """Percent-encode what HTTP cannot carry; bytes of a header that are no UTF-8 stay the same bytes."""
    return NOT_SENT.sub(lambda byte: b"%%%02X" % ord(byte[0]), text.encode(errors="surrogateescape")).decode()


def check_url(url: URL, allowed: frozenset[str]) -> None:
    """Check a host that is an address: only public ones and `allowed` hosts pass.

    Raises PrivateAddressError for a private address, FetchError for a public one in a numeric spelling.
    """
    try:
        check_host(url.raw_host or "", allowed)
    except ValueError as error:
        raise FetchError("invalid_url", str(error)) from error
