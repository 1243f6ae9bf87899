"""Extra headers and the proxy of downloads. Both may hold secrets: no message repeats their values."""

import re
from collections.abc import Mapping
from typing import Final

from yarl import URL

from common.errors import UserError
from pipeline.download.addresses import canonical_hosts

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
