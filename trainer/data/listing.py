"""Facts about shards that are known without opening them: their sizes, versions and manifests."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import MAX_BYTES, read_object, write_object
from hypergrit_common.remote import map_concurrently, open_file, open_store, store_errors
from hypergrit_common.shards import names_in, read_errors_explained
from hypergrit_common.text import shortened
from schemas.files import INDEX_FILE, MANIFEST_FILE, ShardPath
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
        return ShardPath.split(self.url)

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
    roots = list(dict.fromkeys(ShardPath.split(url).root for url in urls))
    manifests = dict(zip(roots, map_concurrently(_list_manifests, roots), strict=True))
    yield from map_concurrently(partial(_facts, listings=listings, manifests=manifests), urls)


def _list_folder(folder: str) -> dict[str, Stored]:
    fs, path = open_store(folder or ".")
    fs.invalidate_cache(path)  # what this process has listed before may be old
    try:
        return {info["name"].rstrip("/").rpartition("/")[2]: stored_facts(info) for info in fs.ls(path, detail=True)}
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
    place = ShardPath.split(url)
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
            files = dict(json.loads(file.read(MAX_BYTES))["files"])
            found = {name: facts for name, facts in files.items() if name in wanted and "sha256" in facts}
            return found if all(type(facts.get("bytes", 0)) is int for facts in found.values()) else {}
    except store_errors(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


# The versions of the shards of a run: a resumed run must read the shards that it began with.
#
# The file with the versions lies in the output of the run. A version is the size of a shard, the ETag or modification time
# that its store gives, and the SHA-256 in its manifest if the pipeline wrote it. A copied shard has another modification
# time: it counts as the same if its bytes still have that SHA-256.

logger = logging.getLogger(__name__)

VERSIONS_FILE: Final = "shards.json"
SHOWN: Final = 3


class ShardVersion(NamedTuple):
    """The identity of the content of a shard, as far as it is known without reading it."""

    name: str
    size: int
    modified: str  # ETag, else modification time, else empty
    sha256: str  # by its manifest; empty if it has none


def version_of(facts: ShardFacts) -> ShardVersion:
    """Return the version of a shard."""
    return ShardVersion(facts.name, facts.size, facts.modified, facts.recorded["sha256"] if facts.recorded else "")


def altered_shards(before: Sequence[ShardVersion], now: Sequence[ShardVersion], urls: Sequence[str]) -> list[str]:
    """Describe each shard whose content is not known to be the same; `urls` are those of `now`."""
    names, known = {version.name for version in now}, {version.name for version in before}
    if [version.name for version in before] != [version.name for version in now]:
        changes = [f"{name} is new" for name in sorted(names - known)]
        return changes + [f"{name} is gone" for name in sorted(known - names)] or ["their order"]
    found = []
    for old, new, url in zip(before, now, urls, strict=True):
        if old.size != new.size:
            found.append(f"{url} has {new.size} bytes, not {old.size}")
        elif old.sha256 != new.sha256:
            found.append(f"{url} was written again")
        elif old.modified != new.modified and (not new.sha256 or _sha256(url) != new.sha256):
            found.append(f"{url} was modified ({new.modified}, not {old.modified})")
    return found


def check_shards(versions: Sequence[ShardVersion], urls: Sequence[str], output: Path, shown: str = "") -> None:
    """Compare shards with those that the run in `output` began with; does nothing if it did not record them.

    `urls` are those of `versions`; messages name the output `shown`. A shard with another modification time is read, if
    its hash is known. Raises UserError, naming the shards that differ, and for a shard that cannot be read.
    """
    path = output / VERSIONS_FILE
    if not path.exists():
        return
    try:
        before = [ShardVersion(*values) for values in read_object(path)["shards"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s): changed shards are not noticed", path, error)
        return
    altered = altered_shards(before, versions, urls)
    if altered:
        raise UserError(
            f"data.shards: the shards differ from those that the run in {shown or output} began with: "
            f"{shortened(altered, SHOWN)}. Restore them, give another output=, or set resume=anyway if they "
            "have the same samples in the same order"
        )


def record_shards(versions: Sequence[ShardVersion], output: Path) -> None:
    """Write the versions of the shards to the output of a run. Raises OSError."""
    write_object({"shards": [list(version) for version in versions]}, output / VERSIONS_FILE)


def _sha256(url: str) -> str:
    with read_errors_explained(url), open_file(url) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
