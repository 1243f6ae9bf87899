"""The list of rows that must not be in an output: URLs, hosts and SHA-256 hashes of images."""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote, unquote_to_bytes, urlsplit

import pyarrow as pa

from common.errors import UserError
from common.files import check_file
from common.remote import one_line, open_store, store_errors
from common.urls import without_user
from schemas.table import Drop, drop_rows

Kind = Literal["url", "host", "sha256"]

TAKEN_DOWN: Final = "taken_down"
STAGE_OF: Final[Mapping[Kind, str]] = {"url": "read", "host": "read", "sha256": "download"}
"""Kind of an entry -> stage that drops its rows: the hash of an image is known after its download."""
LEFT: Final = ("stage", "reason", "detail")
"""Nullable columns that a row keeps after it was taken down; like those that are never null, they describe no image."""
HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
HOST: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)+[a-z0-9-]*[a-z][a-z0-9-]*")
PORTS: Final = {"http": 80, "https": 443}
PATH_CHARACTERS: Final = "/!$&'()*+,;=:@~"


@dataclass(frozen=True)
class TakedownList:
    """URLs in their `normal_url`, host names and hashes."""

    urls: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    hashes: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.urls) + len(self.hosts) + len(self.hashes)

    def without_queries(self) -> "TakedownList":
        """Return the list for an output whose URLs have no queries."""
        return TakedownList(self.urls | {url.partition("?")[0] for url in self.urls}, self.hosts, self.hashes)

    def match_url(self, url: str | None) -> Kind | None:
        """Return the kind of the entry that names a URL, or None."""
        if not url or not (self.urls or self.hosts):
            return None
        normal = normal_url(url)
        if normal is None:
            return None
        if normal in self.urls:
            return "url"
        return "host" if self.hosts and self._has_host(normal[2:].partition("/")[0]) else None

    def match(self, url: str | None, sha256: str | None) -> Kind | None:
        """Return the kind of the entry that names a row, or None."""
        return self.match_url(url) or ("sha256" if sha256 in self.hashes else None)

    def _has_host(self, place: str) -> bool:
        host = re.sub(r":\d+$", "", place)
        if host in self.hosts:
            return True
        return any(host[i + 1 :] in self.hosts for i, character in enumerate(host) if character == ".")


def read_takedown(path: str) -> TakedownList:
    """Read a list: one URL, host or SHA-256 per line; empty lines and lines that begin with # are left out.

    Raises UserError for a file that cannot be read, or a line that is none of them.
    """
    try:
        fs, name = open_store(path)
        if "://" not in path:
            check_file(Path(path))
        text = fs.cat_file(name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (byte {error.start}); give a text file with one entry a line"
        ) from None
    except store_errors(ValueError) as error:
        raise UserError(f"the takedown list {path} cannot be read: {one_line(error)}") from None
    return parse_takedown(text.splitlines(), path)


def parse_takedown(lines: Iterable[str], name: str) -> TakedownList:
    """Parse the lines of a list. Raises UserError, naming the line of the file `name`, for one that is no entry.

    >>> entries = parse_takedown(["example.org", "https://example.com/a.jpg", "# asked for on Monday"], "list.txt")
    >>> entries.match("http://img.example.org/1.jpg", None), entries.match("http://example.com/a.jpg", None)
    ('host', 'url')
    """
    urls, hosts, hashes = set[str](), set[str](), set[str]()
    for number, line in enumerate(lines, start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        if HASH.fullmatch(entry):
            hashes.add(entry.lower())
        elif "://" in entry and (normal := normal_url(entry)):
            urls.add(normal)
        elif "://" not in entry and (host := normal_host(entry)):
            hosts.add(host)
        else:
            raise UserError(
                f"{name}, line {number}: {entry[:80]!r} is no http(s) URL, host name or SHA-256 of 64 hex digits; "
                "correct or remove the line"
            )
    return TakedownList(frozenset(urls), frozenset(hosts), frozenset(hashes))


def normal_url(url: str) -> str | None:
    """Return the form in which URLs of the same resource are equal, None for a text that is no http(s) URL.

    Left out are scheme, user, default port and fragment; the host is in lower case, and escapes are uniform.

    >>> normal_url("HTTPS://Example.org:443/a%7eb.jpg#top")
    '//example.org/a~b.jpg'
    """
    try:
        parts = urlsplit(without_user(url.strip()))
        host, port = normal_host(parts.hostname or "", any_name=True), parts.port
    except ValueError:
        return None
    if parts.scheme.lower() not in PORTS or not host:
        return None
    place = host if port in (None, PORTS[parts.scheme.lower()]) else f"{host}:{port}"
    path = quote(unquote_to_bytes(parts.path), safe=PATH_CHARACTERS) or "/"
    return f"//{place}{path}{'?' + parts.query if parts.query else ''}"


def normal_host(text: str, any_name: bool = False) -> str | None:
    """Return a host name in lower case and in ASCII, without its last dot; None for other text.

    Unless `any_name`, it must be an address, or a name with a dot.
    """
    with suppress(ValueError):
        address = ipaddress.ip_address(text.strip("[]"))
        return f"[{address}]" if address.version == 6 else str(address)
    host = text.lower().rstrip(".")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            return host if any_name else None
    return host if any_name or HOST.fullmatch(host) else None


@cache
def entries_of(path: str) -> TakedownList:
    """Return the list at `path`, read once per process. Raises UserError."""
    return read_takedown(path)


def refuse_urls(table: pa.Table, path: str | None) -> pa.Table:
    """Drop the rows of a READ table whose URL or host the list at `path` names. Raises UserError."""
    if path is None:
        return table
    entries = entries_of(path)
    return refuse(table, [entries.match_url(url) for url in table["url"].to_pylist()])


def refuse_images(table: pa.Table, path: str | None) -> pa.Table:
    """Drop the rows of a DOWNLOADED table whose SHA-256 the list at `path` names. Raises UserError."""
    if path is None:
        return table
    entries = entries_of(path)
    return refuse(table, ["sha256" if digest in entries.hashes else None for digest in table["sha256"].to_pylist()])


def refuse(table: pa.Table, kinds: Sequence[Kind | None]) -> pa.Table:
    """Drop the rows with a kind, and set to null what describes the image or its page."""
    for stage in ("read", "download"):
        drops = {i: Drop(TAKEN_DOWN, kind) for i, kind in enumerate(kinds) if kind and STAGE_OF[kind] == stage}
        table = drop_rows(table, stage, drops, described(table.schema))
    return table


def described(schema: pa.Schema) -> list[str]:
    """Return the columns that are removed when a row is taken down: all but its key, its place and its drop.

    >>> from schemas.rows import READ
    >>> described(READ)
    ['id', 'url', 'caption_original', 'extra', 'image', 'given_noun_chunks', 'given_ref_exps']
    """
    return [item.name for item in schema if item.nullable and item.name not in LEFT]
