"""Keys by which takedown lists compare URLs and hosts: equal for all spellings that the downloader fetches as one."""

import ipaddress
import re
from contextlib import suppress
from typing import Final

from yarl import URL

from common.urls import without_user

DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
HOST: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)+[a-z0-9-]*[a-z][a-z0-9-]*")
HTTP_URL: Final = re.compile(r"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
PORT: Final = re.compile(r":[^\]]*$")


def normal_url(url: str) -> str | None:
    """Return the form in which URLs of the same resource are equal, None for a text that is no http(s) URL.

    Left out are scheme, user, default port and fragment; all else is as yarl writes it, with which the downloader
    parses URLs (pipeline.download.urls).

    >>> normal_url("HTTPS://Example.org:443/b/../a%7eb.jpg#top")
    '//example.org/a~b.jpg'
    """
    text = url.strip()
    try:
        parsed = URL(text)
        place = parsed.host_port_subcomponent
    except Exception:  # ValueError, but the parsers raise IndexError and others too
        return refused_url(without_user(text))
    if parsed.scheme not in DEFAULT_PORTS or not place:
        return None
    return f"//{place.lower()}{path_and_query(parsed)}"  # yarl keeps capitals beside labels that IDNA 2008 refuses


def refused_url(text: str) -> str | None:
    """Return the form of a URL that the downloader refuses, such as one with port 99999; the ledger has it too."""
    found = HTTP_URL.match(text)
    if found is None:
        return None
    scheme, authority, rest = found.groups()
    port = PORT.search(authority)
    host = ascii_host(PORT.sub("", authority)) or PORT.sub("", authority).lower().rstrip(".")
    shown = "" if port is None or port[0] in (":", DEFAULT_PORTS[scheme.lower()]) else port[0]
    return f"//{host}{shown}{path_and_query(URL(f'http://host{rest}'))}" if host else None


def path_and_query(url: URL) -> str:
    """Return the path of an absolute URL, with its query if it has one."""
    return f"{url.raw_path}?{query}" if (query := url.raw_query_string) else url.raw_path


def host_of(normal: str) -> str:
    """Return the host of a URL in its `normal_url`.

    >>> host_of("//[::1]:8080/a.jpg")
    '[::1]'
    """
    return PORT.sub("", normal[2:].partition("/")[0])


def normal_host(text: str) -> str | None:
    """Return an address, or a host name with a dot, as `normal_url` writes it; None for other text."""
    host = ascii_host(text)
    if host is None or HOST.fullmatch(host):
        return host
    with suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return host
    return None


def ascii_host(text: str) -> str | None:
    """Return a host in lower case and in ASCII, without its last dot; None for a text that cannot be one."""
    try:
        return (URL.build(scheme="http", host=text.strip("[]")).host_port_subcomponent or "").lower() or None
    except Exception:  # ValueError, but the parsers raise IndexError and others too
        return None
