"""Folders and buckets from which the paths and URLs of rows may be read. Rows are hostile: nothing else is opened."""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.errors import UserError
from hypergrit_common.remote import open_store
from hypergrit_common.urls import check_no_user

SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""The scheme and a slash of a URL."""
ALIASES: Final = {"s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
SPECIAL: Final = re.compile(r"[?#\\]|::")
"""Signs of URLs that file systems of fsspec interpret: versions of objects, and chains of URLs."""


class RefusedError(ValueError):
    """A path or URL that must not be read; the message is the reason."""


@dataclass(frozen=True)
class Root:
    """A folder of `fs`: a resolved local path, or bucket and prefix of a store."""

    fs: AbstractFileSystem
    path: str
    protocol: str  # "" for local files
    name: str = ""  # of the folder in a store, as `fs` writes it

    def contains(self, path: str) -> bool:
        """Return True for a path below this folder."""
        return path.startswith(f"{self.path.rstrip('/')}/")


@dataclass(frozen=True)
class Location:
    """A file below a root. The path of a local one is not resolved yet."""

    root: Root
    path: str

    @property
    def name(self) -> str:
        """The path in a store, as its file system writes it."""
        return self.root.name.rstrip("/") + self.path[len(self.root.path) :]

    @property
    def below(self) -> str:
        """The place as outputs name it: the path below a local folder, or the URL."""
        return str(self) if self.root.protocol else self.path[len(self.root.path) :].lstrip("/")

    def __str__(self) -> str:
        return f"{self.root.protocol}://{self.path}" if self.root.protocol else self.path


def is_web(text: str) -> bool:
    """Return True for http and https URLs, which the download stage fetches."""
    return text[:8].lower().startswith(("http://", "https://"))


def without_query(path: str) -> str:
    """Return a web URL up to its query and fragment, which name no file; other paths may have both signs in names."""
    return re.split("[?#]", path, maxsplit=1)[0] if is_web(path) else path


class Roots:
    """The roots of `read.image_roots`. Raises UserError for one that cannot be used."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = [_root(text) for text in roots]

    def __bool__(self) -> bool:
        return bool(self._roots)

    def locate(self, text: str, source: str) -> Location:
        """Return the place of an image; `text` is a URL, an absolute path or a relative one.

        A relative path starts at the folder of the input file `source` if that is below a root, or else at the first
        root. Raises RefusedError for a place that is not below a root, as far as its name tells.
        """
        if not self._roots:
            raise RefusedError("read.image_roots names no folder")
        if CONTROL.search(text) or text != text.encode(errors="replace").decode():
            raise RefusedError("control characters or invalid Unicode in the path")
        protocol, path = _split(text)
        if not protocol and not path.startswith("/"):
            protocol, path = self._join(path, source)
        check_segments(path, protocol)
        for root in self._roots:
            if root.protocol == protocol and root.contains(path):
                return Location(root, path)
        if not protocol:  # a link above the root, such as /data -> /mnt/data; `read_local` resolves the rest
            folder, _, name = path.rpartition("/")
            resolved = f"{os.path.realpath(folder)}/{name}"
            for root in self._roots:
                if not root.protocol and root.contains(resolved):
                    return Location(root, resolved)
        raise RefusedError("it is not in a folder of read.image_roots")

    def _join(self, path: str, source: str) -> tuple[str, str]:
        protocol, base = _split(source)
        base = base.rpartition("/")[0]
        base = base if protocol else os.path.realpath(base)
        if not any(root.protocol == protocol and root.contains(f"{base}/") for root in self._roots):
            protocol, base = self._roots[0].protocol, self._roots[0].path
        return protocol, f"{base.rstrip('/')}/{path}"


def _root(text: str) -> Root:
    key = f"read.image_roots={text!r}"
    check_no_user("read.image_roots", text)
    if is_web(text):
        raise UserError(f"{key} is a web address; http and https images are downloaded without this setting")
    if "::" in text:
        raise UserError(f"{key} is a chain of URLs; give a folder or the URL of a bucket")
    fs, name = open_store(text)
    if isinstance(fs, LocalFileSystem):
        if not os.path.isdir(name):
            raise UserError(f"{key} is not a folder; give one that exists on every machine of the job")
        return Root(fs, os.path.realpath(name), "")
    protocol, path = _split(text)
    if not path.strip("/"):
        raise UserError(f"{key} names no bucket; give one, such as s3://bucket/prefix")
    return Root(fs, path.rstrip("/"), protocol, name)


def _split(text: str) -> tuple[str, str]:
    """Return (protocol, path) of a URL or path; protocol is "" for local ones. Raises RefusedError.

    Only file:// URLs are percent-decoded, and once: names in buckets and plain paths are literal.
    """
    found = SCHEME.match(text)
    if found is None:
        return "", text
    scheme, rest = found[1].lower(), text[found.end() :]
    if scheme == "file":
        if rest.startswith("/"):
            host, _, rest = rest[1:].partition("/")
            if host not in ("", "localhost"):
                raise RefusedError(f"{host!r} is another machine; a file URL begins with file:///")
        try:
            path = unquote(f"/{rest}", errors="strict")
        except UnicodeDecodeError:
            raise RefusedError("the percent-encoded bytes of the path are not UTF-8") from None
        if CONTROL.search(path):
            raise RefusedError("control characters in the path")
        return "", path
    if not rest.startswith("/"):
        raise RefusedError(f"the URL begins with {scheme}:/ and not with {scheme}://")
    return ALIASES.get(scheme, scheme), rest[1:]


def check_segments(path: str, protocol: str) -> None:
    """Raise RefusedError for a path that leaves its folder, and for signs with a meaning in URLs of stores."""
    names = path.split("/")
    if ".." in names:
        raise RefusedError("'..' in the path")
    if protocol and (SPECIAL.search(path) or any(name in ("", ".") for name in names)):
        raise RefusedError("the name has '?', '#', '::', a backslash or an empty folder")
    if protocol and any(unquote(unquote(name)) in (".", "..") or "/" in unquote(unquote(name)) for name in names):
        raise RefusedError("a percent-encoded '.' or '/' in the path")


def open_local(location: Location) -> int:
    """Open a local file and return its descriptor. Raises RefusedError, also for links out of the root, and OSError."""
    path = os.path.realpath(location.path)
    if not location.root.contains(path):
        raise RefusedError("a link leads out of the folders of read.image_roots")
    # The path is resolved: a link in its place is new. A pipe must not block the open.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RefusedError("not a regular file")
    opened = f"/proc/self/fd/{descriptor}"
    if os.path.exists(opened) and not location.root.contains(os.readlink(opened)):  # a folder was replaced by a link
        os.close(descriptor)
        raise RefusedError("a link leads out of the folders of read.image_roots")
    return descriptor


def file_size(location: Location) -> int:
    """Return the bytes of a file. Raises RefusedError and the exceptions of the store."""
    if not location.root.protocol:
        descriptor = open_local(location)
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    info = location.root.fs.info(location.name)
    if info.get("type") == "directory":
        raise IsADirectoryError(location.name)
    return int(info["size"] or 0)


def read_file(location: Location, size: int) -> bytes:
    """Return up to `size` bytes of a file. Raises like `file_size`."""
    if not location.root.protocol:
        with open(open_local(location), "rb") as file:
            return file.read(size)
    return bytes(location.root.fs.cat_file(location.name, start=0, end=size)) if size else b""


# The version of an object, by which a change of it is noticed.

VERSION_KEYS: Final = (
    *("etag", "md5hash", "contentmd5", "digest", "versionid"),
    *("lastmodified", "updated", "timemodified", "modified", "mtime"),
)
"""Names that stores and HTTP servers have for the version of an object, without punctuation, the best first."""


def object_version(info: Mapping[str, Any]) -> str:
    """Return the ETag of an object, or the value that its store has in place of one; "" if it has neither."""
    found = {re.sub(r"[^a-z0-9]", "", name.lower()): value for name, value in info.items()}
    return next((str(found[key]).strip('"') for key in VERSION_KEYS if found.get(key)), "")
