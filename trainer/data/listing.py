"""Facts about shards that are known without opening them: their sizes, versions and manifests."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from common.errors import UserError
from common.remote import map_concurrently, open_file, open_store, store_errors
from common.shards import names_in, read_errors_explained
from schemas.files import INDEX_FILE, MANIFEST_FILE
from schemas.layout import ShardPath, split_path
from schemas.manifest import FileFacts

ETAGS: Final = ("ETag", "etag", "md5Hash")
TIMES: Final = ("mtime", "LastModified", "last_modified", "updated", "created")


class Stored(NamedTuple):
    """Size and version of a file by its store."""

    size: int
    modified: str  # ETag, else modification time, else empty


class ShardFacts(NamedTuple):
    """A shard, with its entry in its manifest and that of its index."""

    url: str
    size: int
    modified: str  # ETag, else modification time, else empty
    files: Mapping[str, FileFacts]  # the shard and its index: path relative to the output -> size and content

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def place(self) -> ShardPath:
        """The output of the shard, and the parts of its path there."""
        return split_path(self.url)

    @property
    def path(self) -> str:
        """The path of the shard relative to its output, such as train/00000.tar."""
        return f"{self.place.folder}/{self.place.name}"

    @property
    def index_path(self) -> str:
        """The path of the index of the shard relative to its output."""
        return f"{INDEX_FILE.folder}/{self.place.stem}{INDEX_FILE.suffix}"

    @property
    def recorded(self) -> FileFacts | None:
        """Size and hash of the shard in its manifest."""
        return self.files.get(self.path)


def list_facts(urls: Sequence[str]) -> Iterator[ShardFacts]:
    """Yield the facts of shards, in order: one listing per folder where the store has listings, and one read per manifest.

    Raises UserError if a shard is missing or a store cannot be read.
    """
    folders = list(dict.fromkeys(url.rpartition("/")[0] for url in urls))
    listings = dict(zip(folders, map_concurrently(_list_folder, folders), strict=True))
    roots = list(dict.fromkeys(split_path(url).root for url in urls))
    manifests = dict(zip(roots, map_concurrently(_list_manifests, roots), strict=True))
    yield from map_concurrently(partial(_facts, listings=listings, manifests=manifests), urls)


def _list_folder(folder: str) -> dict[str, Stored]:
    fs, path = open_store(folder or ".")
    fs.invalidate_cache(path)  # what this process has listed before may be old
    try:
        return {_base(info["name"]): stored_facts(info) for info in fs.ls(path, detail=True)}
    except store_errors(ValueError):  # HTTP servers list nothing; other causes have their message for each shard
        return {}


def _list_manifests(root: str) -> set[str]:
    fs, path = open_store(f"{root}/{MANIFEST_FILE.folder}")
    fs.invalidate_cache(path)
    try:
        return names_in(fs, path) or set()
    except store_errors(ValueError):
        return set()


def _facts(url: str, listings: dict[str, dict[str, Stored]], manifests: dict[str, set[str]]) -> ShardFacts:
    folder, _, name = url.rpartition("/")
    size, modified = listings[folder].get(name) or _stored(url)
    place = split_path(url)
    files = _manifest_files(url) if f"{place.stem}{MANIFEST_FILE.suffix}" in manifests[place.root] else {}
    return ShardFacts(url, size, modified, files)


def _stored(url: str) -> Stored:
    fs, path = open_store(url)
    with read_errors_explained(url):
        try:
            return stored_facts(fs.info(path))
        except FileNotFoundError:
            raise UserError(f"{url} does not exist any more; restore it, then repeat the command") from None


def stored_facts(info: Mapping[str, Any]) -> Stored:
    """Size and version in what fsspec tells of a file."""
    modified = next((str(info[key]) for key in (*ETAGS, *TIMES) if info.get(key) not in (None, "")), "")
    return Stored(int(info.get("size") or 0), modified)


def _manifest_files(url: str) -> Mapping[str, FileFacts]:
    """The shard and its index in the manifest; empty if it is damaged."""
    bare = ShardFacts(url, 0, "", {})
    wanted = {bare.path, bare.index_path}
    try:
        with open_file(f"{bare.place.root}/{MANIFEST_FILE.folder}/{bare.place.stem}{MANIFEST_FILE.suffix}") as file:
            files = dict(json.load(file)["files"])
            return {str(name): facts for name, facts in files.items() if name in wanted and "sha256" in facts}
    except store_errors(ValueError, KeyError, TypeError):
        return {}


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
