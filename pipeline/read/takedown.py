"""The list of rows that must not be in an output: URLs, hosts and SHA-256 hashes of images."""

import base64
import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
import pyarrow as pa

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.near_duplicates import host_of, normal_host, normal_url
from hypergrit_common.remote import one_line, open_store, store_errors
from hypergrit_common.urls import without_secrets
from schemas.job import Takedowns
from schemas.rows import SCORED
from schemas.status import DROPPED
from schemas.table import Drop, drop_rows

Kind = Literal["url", "host", "sha256"]

TAKEN_DOWN: Final = "taken_down"
STAGE_OF: Final[Mapping[Kind, str]] = {"url": "read", "host": "read", "sha256": "download"}
"""Kind of an entry -> stage that drops its rows: the hash of an image is known after its download."""
LEFT: Final = ("stage", "reason", "detail")
"""Nullable columns that a row keeps after it was taken down; like those that are never null, they describe no image."""
HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
BYTES: Final = 32
"""Size of a digest."""


@dataclass(frozen=True)
class Digests:
    """A set of SHA-256 digests: sorted, 32 bytes each. A million of them take 32 MB, and no time to load."""

    data: bytes = b""

    @classmethod
    def from_bytes(cls, data: bytes) -> "Digests":
        """Return the digests in any order. Raises ValueError if they are no whole number of digests."""
        found = np.frombuffer(data, f"S{BYTES}")
        return cls(data if (found[:-1] < found[1:]).all() else np.unique(found).tobytes())

    @classmethod
    def of(cls, entries: Iterable[str]) -> "Digests":
        """Return the digests of entries."""
        return cls.from_bytes(b"".join(map(digest_of, entries)))

    @classmethod
    def from_json(cls, value: Any) -> "Digests":
        """Return the digests in base64, or in the list of hex texts of earlier versions. Raises TypeError or ValueError."""
        if isinstance(value, str):
            return cls.from_bytes(base64.b64decode(value, validate=True))
        if not all(isinstance(digest, str) and HASH.fullmatch(digest) for digest in value):
            raise ValueError("it has other entries than digests")
        return cls.from_bytes(bytes.fromhex("".join(value)))

    def __len__(self) -> int:
        return len(self.data) // BYTES

    def __iter__(self) -> Iterator[bytes]:
        return map(self._at, range(len(self)))

    def __contains__(self, entry: str) -> bool:
        """Return True for an entry whose digest is among these."""
        digest = digest_of(entry)
        return self._at(bisect_left(range(len(self)), digest, key=self._at)) == digest

    def _at(self, i: int) -> bytes:
        return self.data[BYTES * i : BYTES * (i + 1)]

    def __or__(self, other: "Digests") -> "Digests":
        small, large = sorted((self, other), key=len)
        return self.from_bytes(large.data + small.data) if small and small != large else large

    def __sub__(self, other: "Digests") -> "Digests":
        mine, others = (np.frombuffer(digests.data, f"S{BYTES}") for digests in (self, other))
        return Digests(mine[~np.isin(mine, others, assume_unique=True)].tobytes()) if self and other else self


@dataclass(frozen=True)
class TakedownList:
    """Digests of URLs in their `normal_url`, of host names, and of hashes of images.

    The entries cannot be read from them, so that an output can keep what was taken down from it. `bare_urls` are those
    of the URLs without queries that are not in `urls`, to which `without_queries` adds them. `rows` matches no row: it tells
    which names of rows were replaced by the URLs and hashes of their rows, whose ids are gone since.
    """

    urls: Digests = Digests()
    bare_urls: Digests = Digests()
    hosts: Digests = Digests()
    hashes: Digests = Digests()
    rows: Digests = Digests()

    def __len__(self) -> int:
        return len(self.urls) + len(self.hosts) + len(self.hashes)

    def __or__(self, other: "TakedownList") -> "TakedownList":
        """Return the entries of both lists."""
        both = TakedownList(*(getattr(self, item.name) | getattr(other, item.name) for item in fields(self)))
        return replace(both, bare_urls=both.bare_urls - both.urls)

    def to_json(self) -> Takedowns:
        """Return the content of the file in an output."""
        columns = (base64.b64encode(getattr(self, item.name).data).decode() for item in fields(self))
        return cast(Takedowns, dict(zip(Takedowns.__annotations__, columns, strict=True)))

    @classmethod
    def from_json(cls, value: Any) -> "TakedownList":
        """Return the list that `to_json` describes. Raises LookupError, TypeError or ValueError for a damaged one."""
        value = {"rows": "", **value}  # earlier versions have none
        urls, bare_urls, *others = (Digests.from_json(value[name]) for name in Takedowns.__annotations__)
        return cls(urls, bare_urls - urls, *others)

    def without_queries(self, strip: bool = True) -> "TakedownList":
        """Return the list for an output whose URLs have no queries; unchanged if `strip` is false."""
        return self._stripped if strip and self.bare_urls else self

    @cached_property
    def _stripped(self) -> "TakedownList":
        return replace(self, urls=self.urls | self.bare_urls, bare_urls=Digests())

    def match_url(self, url: str | None) -> Kind | None:
        """Return the kind of the entry that names a URL, or None."""
        if not url or not (self.urls or self.hosts):
            return None
        normal = normal_url(url)
        if normal is None:
            return None
        if any(spelling in self.urls for spelling in spellings(normal)):
            return "url"
        return "host" if self.hosts and self._has_host(host_of(normal)) else None

    def match(self, url: str | None, sha256: str | None) -> Kind | None:
        """Return the kind of the entry that names a row, or None."""
        return self.match_url(url) or ("sha256" if self.has_image(sha256) else None)

    def has_image(self, sha256: str | None) -> bool:
        """Return True if an entry is this hash of an image."""
        return bool(self.hashes) and sha256 is not None and sha256 in self.hashes

    def _has_host(self, host: str) -> bool:
        parents = (host[i + 1 :] for i, character in enumerate(host) if character == ".")
        return any(name in self.hosts for name in (host, *parents))


def spellings(normal: str) -> set[str]:
    """Return a `normal_url` as it is, and with %20 in its query as +, which is a space there too."""
    path, mark, query = normal.partition("?")
    return {normal, f"{path}{mark}{query.replace('%20', '+')}"}


def digest_of(entry: str) -> bytes:
    """Return the SHA-256 of an entry."""
    return hashlib.sha256(entry.encode()).digest()


ROW: Final = "row:"
"""Start of a line with the key or id of a row, which only `hypergrit takedown` knows, since it has an output."""


def read_takedown(path: str) -> TakedownList:
    """Read a list: one URL, host or SHA-256 per line; empty lines and lines that begin with # are left out.

    Raises UserError for a file that cannot be read, or a line that is none of them.
    """
    return parse_takedown(read_lines(path), path)


def read_lines(path: str) -> list[str]:
    """Read the lines of a list. Raises UserError for a file that cannot be read."""
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
    return text.splitlines()


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
            urls |= {normal, normal_url(without_secrets(entry, strip_query=False)) or normal}  # as outputs have it
        elif entry.startswith(ROW):
            raise UserError(
                f"{name}, line {number}: {entry[:80]!r} is a row of an output; give this list to hypergrit takedown"
            )
        elif "://" not in entry and (host := normal_host(entry)):
            hosts.add(host)
        else:
            raise UserError(
                f"{name}, line {number}: {entry[:80]!r} is no http(s) URL, host name or SHA-256 of 64 hex digits; "
                "correct or remove the line"
            )
    urls = {spelling for url in urls for spelling in spellings(url)}
    bare_urls = {url.partition("?")[0] for url in urls if "?" in url} - urls
    return TakedownList(*map(Digests.of, (urls, bare_urls, hosts, hashes)))


def listed(path: str | None) -> TakedownList:
    """Return the list at `path`, an empty one without a path. Raises UserError."""
    return TakedownList() if path is None else read_takedown(path)


entries_of: Final = cache(listed)
"""`listed`, read once per process: that of a worker, which does so for each shard."""


def refuse_urls(table: pa.Table, entries: TakedownList) -> pa.Table:
    """Drop the rows of a READ table whose URL or host a list names."""
    return refuse(table, [entries.match_url(url) for url in table["url"].to_pylist()]) if len(entries) else table


def refuse_images(table: pa.Table, entries: TakedownList) -> pa.Table:
    """Drop the rows of a DOWNLOADED table whose SHA-256 a list names."""
    if not entries.hashes:
        return table
    return refuse(table, ["sha256" if entries.has_image(digest) else None for digest in table["sha256"].to_pylist()])


def refuse(table: pa.Table, kinds: Sequence[Kind | None]) -> pa.Table:
    """Drop the rows with a kind, and set to null what describes the image or its page."""
    for stage in ("read", "download"):
        drops = {i: Drop(TAKEN_DOWN, kind) for i, kind in enumerate(kinds) if kind and STAGE_OF[kind] == stage}
        table = drop_rows(table, stage, drops, described(table.schema))
    return table


def refuse_row(row: Mapping[str, Any], entries: TakedownList) -> Mapping[str, Any]:
    """Return a row of a SCORED table, taken down if a list names it and it is not yet."""
    if not len(entries) or row["reason"] == TAKEN_DOWN:
        return row
    kind = entries.match(row["url"], row["sha256"])
    return row if kind is None else taken_down(row, kind)


def taken_down(row: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return a row of a SCORED table that is taken down, as `refuse` leaves it."""
    drop = {"status": DROPPED, "stage": STAGE_OF[kind], "reason": TAKEN_DOWN, "detail": kind}
    return {**row, **dict.fromkeys(described(SCORED)), **drop}


def described(schema: pa.Schema) -> list[str]:
    """Return the columns that are removed when a row is taken down: all but its key, its place and its drop.

    >>> from schemas.rows import READ
    >>> described(READ)
    ['id', 'url', 'caption_original', 'extra', 'image', 'given_noun_chunks', 'given_ref_exps']
    """
    return [item.name for item in schema if item.nullable and item.name not in LEFT]
