"""The list of rows that must not be in an output: URLs, hosts and SHA-256 hashes of images."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from common.errors import UserError
from common.files import check_file
from common.remote import one_line, open_store, store_errors
from pipeline.read.url_keys import host_of, normal_host, normal_url
from schemas.table import Drop, drop_rows

Kind = Literal["url", "host", "sha256"]

TAKEN_DOWN: Final = "taken_down"
STAGE_OF: Final[Mapping[Kind, str]] = {"url": "read", "host": "read", "sha256": "download"}
"""Kind of an entry -> stage that drops its rows: the hash of an image is known after its download."""
LEFT: Final = ("stage", "reason", "detail")
"""Nullable columns that a row keeps after it was taken down; like those that are never null, they describe no image."""
HASH: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class TakedownList:
    """URLs in their `normal_url`, host names and hashes."""

    urls: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    hashes: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.urls) + len(self.hosts) + len(self.hashes)

    @property
    def digests(self) -> set[str]:
        """The entries in a form from which they cannot be read, to compare lists."""
        groups = {"url": self.urls, "host": self.hosts, "sha256": self.hashes}
        texts = (f"{kind} {entry}" for kind, entries in groups.items() for entry in entries)
        return {hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts}

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
        return "host" if self.hosts and self._has_host(host_of(normal)) else None

    def match(self, url: str | None, sha256: str | None) -> Kind | None:
        """Return the kind of the entry that names a row, or None."""
        return self.match_url(url) or ("sha256" if sha256 in self.hashes else None)

    def _has_host(self, host: str) -> bool:
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
