"""The output folder of a job, on a local disk or in an object store."""

import errno
import fcntl
import json
import logging
import os
import re
import shutil
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import IO, Final, cast

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.config import RESOLVED_FILE
from hypergrit_common.disk import DRAFT, atomic_write, is_abandoned
from hypergrit_common.errors import UserError
from hypergrit_common.files import NotAFileError, check_file, check_link, is_marked
from hypergrit_common.json_file import MAX_BYTES
from hypergrit_common.processes import ProcessId, this_process
from hypergrit_common.remote import is_s3, map_concurrently, one_line, open_store, refusal, store_errors
from hypergrit_common.removed import IN_FOLDERS
from hypergrit_common.time_limits import reported
from hypergrit_common.urls import text_without_secrets
from pipeline.faults import ShardError
from pipeline.read.takedown import TakedownList
from schemas.files import (
    ANSWERS_FOLDER,
    COMMAND_FILE,
    FAILED_FILE,
    FILES,
    JOB_FILE,
    JOURNAL_FILE,
    LEASE_FILE,
    MANIFEST_FILE,
    MANIFEST_FOLDER,
    OUTPUT_FOLDERS,
    REPORT_FILE,
    ROLLUP_FOLDER,
    STATS_FILE,
    TAKEDOWNS_FILE,
    TIMINGS_FILE,
    ShardFile,
    shard_files,
)
from schemas.manifest import FileFacts

logger = logging.getLogger("hypergrit")

# The removal of temporary files and folders that nobody writes any more.

LOCK_SUFFIX: Final = ".lock.tmp"
"""Suffix of lock files: their names hold no process, since several processes use them."""
TEMPORARY: Final = re.compile(rf"{DRAFT.pattern}|\d{{5,18}}\..+\.tmp", re.DOTALL | re.ASCII)
"""Names of the temporary files of an output: of this version, and of any version for a file of a shard."""
FOLDER_PREFIX: Final = "hypergrit-"
FOLDER: Final = re.compile(rf"{FOLDER_PREFIX}([0-9a-f]{{8}}-\d+-\d+)\.[a-z0-9_]{{8}}")
"""Names of the temporary folders: the prefix, the process, and the eight characters that `tempfile` adds."""


def temporary_folder_prefix() -> str:
    """Return the prefix for temporary folders of this process."""
    return f"{FOLDER_PREFIX}{this_process()}."


def remove_abandoned(folders: Iterable[str]) -> None:
    """Remove the temporary files of dead processes in local folders; folders that do not exist are skipped."""
    for folder in folders:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                if not TEMPORARY.fullmatch(entry.name):
                    continue
                if entry.name.endswith(LOCK_SUFFIX):
                    remove_free_lock(entry.path)
                elif is_abandoned(entry, entry.name.split(".")[-3:-2]):
                    with suppress(FileNotFoundError):
                        os.remove(entry.path)


def remove_free_lock(path: str) -> None:
    """Remove a lock file of `locked` that no process holds, such as that of a killed process."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # else its last holder has removed it
                os.remove(path)
        finally:
            os.close(descriptor)


def remove_abandoned_folders(parent: str) -> None:
    """Remove the temporary folders of dead processes in `parent`, such as those of killed workers in TMPDIR.

    Folders with other names, such as `hypergrit-data`, are not touched.
    """
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            found = FOLDER.fullmatch(entry.name)
            if found and entry.is_dir(follow_symlinks=False) and is_abandoned(entry, [found[1]]):
                shutil.rmtree(entry.path, ignore_errors=True)


_SPACE: Final = "free some space and run the same command again; finished shards are kept"
_PERMISSION: Final = "allow this user to write there, or choose another output="
DISK_FIXES: Final = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit for the size of files (ulimit -f), or lower rows_per_shard",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _PERMISSION,
    errno.ENOTDIR: "there is a file where a folder is needed; choose another output=",
    errno.EEXIST: "there is a file where a folder is needed; choose another output=",
    errno.EISDIR: "there is a folder where a file is needed; choose another output=",
    errno.ELOOP: "there is a link where a file is needed; remove it",
}
"""Error number of the file system -> the fix for the user. Other errors are not converted."""
REMOTE_FIX: Final = "check the address, the bucket, the credentials and their permissions; finished shards are kept"
FOR_EVERY_SHARD: Final = (PermissionError, FileNotFoundError, NotADirectoryError, ValueError)
"""Errors of an upload that every other one would meet too: permissions, a missing bucket, a malformed address."""
UPLOADS: Final = 3
"""Number of uploads of a file before a shard gives up on a store that does not keep it."""


@contextmanager
def convert_disk_errors(path: str) -> Iterator[None]:
    """Convert errors of the file system that the user can fix to UserError, with `path` and the fix."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FIXES:
            raise
        raise UserError(f"cannot write {path}: {os.strerror(error.errno)}; {DISK_FIXES[error.errno]}") from error


@lru_cache(maxsize=8)
def read_takedowns(output: str, version: str) -> TakedownList:
    """Return the record of takedowns of an output; `version` names its content, since each shard of a command asks for it."""
    return Store(output).parse_takedowns()


class Store:
    """An output folder: a local path or any fsspec URL. File paths are relative to it.

    Directory listings are not cached, since other nodes of a cluster write to the same folder. Methods raise UserError
    if a remote store refuses a request, or if a local folder is not writable.
    """

    def __init__(self, output: str) -> None:
        self.fs, self.root = open_store(output, use_listings_cache=False)
        self.is_local = isinstance(self.fs, LocalFileSystem)
        if self.is_local and ("::" in output or min(output, default=" ") < " "):
            raise UserError(f"{output!r} has '::' or a control character in its name; give another one")
        # What surrounds the writing of a small file: a check of the lease (pipeline.output.lock).
        self.fence: Callable[[], AbstractContextManager[object]] = nullcontext

    @cached_property
    def takedowns(self) -> TakedownList:
        """The entries taken down from this output and its sources; read once. Raises UserError if their record is damaged."""
        return self.read_takedowns()

    def read_takedowns(self) -> TakedownList:
        """Return what was taken down until now. Raises UserError like `takedowns`."""
        try:
            with self.convert_errors("read", TAKEDOWNS_FILE):
                version = self.fs.ukey(self.path(TAKEDOWNS_FILE))
        except (FileNotFoundError, NotADirectoryError):
            return TakedownList()
        return read_takedowns(self.url(""), version)

    def parse_takedowns(self) -> TakedownList:
        """Read and parse the record of takedowns. Raises UserError like `takedowns`."""
        content = self.read(TAKEDOWNS_FILE)
        try:
            return TakedownList() if content is None else TakedownList.from_json(json.loads(content))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(
                f"{self.url(TAKEDOWNS_FILE)} is damaged ({one_line(error)}): what was taken down could come back; remove it, "
                "and run hypergrit takedown again with all lists"
            ) from error

    def record_takedowns(self, entries: TakedownList) -> None:
        """Add entries to what was taken down from this output. Raises UserError if it cannot be written."""
        known = self.takedowns
        if (every := known | entries) != known:
            self.write(TAKEDOWNS_FILE, json.dumps(every.to_json()) + "\n")
            self.takedowns = every

    def path(self, relative: str) -> str:
        """Return the path of a file in the file system `fs`."""
        return f"{self.root.rstrip('/')}/{relative}"

    def read(self, relative: str, most: int = MAX_BYTES) -> bytes | None:
        """Return the content of a file of at most `most` bytes, or None if it does not exist.

        Raises UserError for a larger file, and for a pipe, which would never end.
        """
        options = {} if self.is_local else {"start": 0, "end": most + 1}  # to ask for the size is a request of its own
        try:
            with self.convert_errors("read", relative):
                path = self.readable(relative)
                is_large = self.is_local and os.stat(path).st_size > most
                content = b"" if is_large else cast(bytes, self.fs.cat_file(path, **options))
        except UserError as error:
            if getattr(error.__cause__, "errno", None) != errno.EINVAL or self.size(relative) != 0:
                raise
            return b""  # S3 refuses a part of an empty file
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotAFileError as error:
            raise UserError(str(error)) from error
        if is_large or len(content) > most:
            size = f"{self.size(relative):,} bytes, more than the {most:,} that such a file may have"
            raise UserError(f"{self.url(relative)} has {size}; put the right file there, or remove it")
        return content

    def read_spare(self, relative: str) -> bytes | None:
        """Return the content of a file that the shards do not need, or None if it does not exist or cannot be read."""
        try:
            return self.read(relative)
        except UserError as error:
            logger.warning("%s is not used: %s", self.url(relative), one_line(error))
            return None

    def readable(self, relative: str) -> str:
        """Return the path of a file that is about to be opened. Raises NotAFileError for a pipe, which would never end."""
        if self.is_local:
            check_file(self.path(relative))
        return self.path(relative)

    def open(self, relative: str) -> IO[bytes]:
        """Open a file for reading. Raises OSError and NotAFileError, and, while it is read too, what `read` raises."""
        path = self.readable(relative)
        with self.convert_errors("read", relative):
            file = self.fs.open(path, "rb")
        if (cache := getattr(file, "cache", None)) is not None:
            cache.fetcher = partial(self._fetch, relative, cache.fetcher)
        return cast(IO[bytes], file)

    def _fetch(self, relative: str, fetch: Callable[[int, int], bytes], start: int, end: int) -> bytes:
        with self.convert_errors("read", relative):
            return fetch(start, end)

    def read_part(self, relative: str, start: int, size: int) -> bytes:
        """Return a part of a file. Raises like `open`."""
        path = self.readable(relative)
        with self.convert_errors("read", relative):
            return bytes(self.fs.cat_file(path, start=start, end=start + size))

    def open_arrow(self, relative: str) -> pa.NativeFile:
        """Open a file for Arrow, a local one in memory. Raises like `open`."""
        return pa.memory_map(self.readable(relative)) if self.is_local else pa.PythonFile(self.open(relative), "r")

    def size(self, relative: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        try:
            with self.convert_errors("read", relative):
                return int(self.fs.info(self.path(relative))["size"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of the files in a folder by name; an empty dictionary if it does not exist.

        In an object store this takes one request per 1,000 files.
        """
        return self.contents(folder)[0]

    def contents(self, folder: str) -> tuple[dict[str, int], list[str]]:
        """Return the sizes in bytes of the files in a folder by name like `sizes`, and the names of its folders."""
        try:
            with self.convert_errors("read", folder):
                if self.is_local:
                    return local_contents(self.path(folder))
                found = self.fs.ls(self.path(folder), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}, []
        items = [(item["name"].rstrip("/").rsplit("/", 1)[-1], item) for item in found]
        files = {name: item["size"] for name, item in items if item["type"] == "file"}
        return files, [name for name, item in items if item["type"] == "directory"]

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files in a folder; an empty list if it does not exist."""
        return sorted(self.sizes(folder))

    def write(self, relative: str, text: str) -> None:
        """Write a small text file atomically: readers see the old or the new one."""
        self.write_bytes(relative, text.encode())

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Write a small file atomically: readers see the old or the new one. Raises what the `fence` raises."""
        with self.convert_errors("write", relative):
            self.make_folder(relative)
            if self.is_local:
                # Drafts of others stay: a journal may name them.
                with atomic_write(Path(self.path(relative)), self.fence, cleans=False) as draft:
                    draft.write_bytes(data)
                return
            with self.fence():
                self.fs.pipe_file(self.path(relative), data)
        if self.size(relative) != len(data):
            raise UserError(f"cannot write {self.url(relative)}: the store did not keep the upload; {REMOTE_FIX}")

    def upload(self, path: str, relative: str, facts: FileFacts) -> None:
        """Copy a local file to a remote store, and check the result.

        The check compares the size, and on S3 the hash too, which is uploaded as metadata of the object: a lost upload
        may leave an older object of the same size. Raises ShardError if the object differs after `UPLOADS` attempts or
        the request fails, which another machine or a later attempt may not meet; and UserError for what concerns every
        shard: permissions, credentials, the bucket.
        """
        metadata = {"Metadata": {"sha256": facts["sha256"]}} if is_s3(self.fs) else {}
        for _ in range(UPLOADS):
            try:
                with self.convert_errors("write", relative):
                    self.make_folder(relative)
                    self.fs.put_file(path, self.path(relative), **metadata)
                    if self.has(relative, facts):
                        return
            except UserError as error:
                if isinstance(error.__cause__, FOR_EVERY_SHARD) or "Credential" in type(error.__cause__).__name__:
                    raise
                raise ShardError(f"{error} (from {socket.gethostname()})") from error
        raise ShardError(
            f"cannot write {self.url(relative)}: the store accepted {UPLOADS} uploads, but the object is missing or "
            f"differs; {REMOTE_FIX}"
        )

    def has(self, relative: str, facts: FileFacts) -> bool:
        """Return True if a remote file has this size, and on S3 this hash in its metadata. Raises like `open`."""
        if not is_s3(self.fs):
            return self.size(relative) == facts["bytes"]
        bucket, key, _ = self.fs.split_path(self.path(relative))
        try:
            with self.convert_errors("read", relative):
                head = self.fs.call_s3("head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            return False
        return bool(head["ContentLength"] == facts["bytes"] and head["Metadata"].get("sha256") == facts["sha256"])

    def make_folder(self, relative: str) -> None:
        """Create the folder of a file.

        Does nothing in an object store, which has no folders: the first part of its path is the bucket, which the user
        has to create.
        """
        if self.is_local or self.root.startswith("/"):
            self.fs.makedirs(self.path(relative).rsplit("/", 1)[0], exist_ok=True)

    def walk(self) -> Iterator[str]:
        """Yield the paths of all files below the output, relative to it, and of links, of which only marked ones are followed."""
        start, own = len(self.path("")), [path for path in self.links(FILES) if is_marked(path)]
        with self.convert_errors("read", ""):
            walk = partial(self.fs.walk, on_error=unless_gone)
            found = chain.from_iterable(map(os.walk, (self.root, *own))) if self.is_local else [*walk(self.root)]
        for folder, folders, files in found:
            paths = [f"{folder}/{name}" for name in folders if self.is_local]
            links = [path for path in paths if os.path.islink(path) and path not in own]
            yield from (path[start:] for path in (*(f"{folder}/{name}" for name in files if name), *links))

    def links(self, folders: Iterable[str]) -> list[str]:
        """Return the local paths of those of `folders` that are links."""
        return [path for path in map(self.path, folders) if self.is_local and os.path.islink(path)]

    def remove(self, relatives: Iterable[str]) -> None:
        """Delete files, in order, if they exist."""
        for relative in relatives:
            with suppress(FileNotFoundError), self.convert_errors("remove", relative):
                if self.is_local:
                    os.remove(self.path(relative))
                else:
                    self.fs.rm_file(self.path(relative))

    def remove_many(self, relatives: Iterable[str]) -> None:
        """Delete files concurrently, in any order, if they exist."""
        for _ in map_concurrently(lambda relative: self.remove([relative]), relatives):
            pass

    def discard(self, shards: Collection[int], planned: Collection[int]) -> None:
        """Remove the manifests of these shards, then the files of those that are not `planned`."""
        self.remove_many(MANIFEST_FILE.path(index) for index in shards)
        gone = [index for index in shards if index not in planned]
        self.remove_many(name for index in gone for name in shard_files(index))
        self.remove_many(kind.path(index) for index in gone for kind in (FAILED_FILE, TIMINGS_FILE))

    def remove_drafts(self) -> None:
        """Remove the files that killed processes have left half-written; an object store has only the probes of dead ones."""
        if self.is_local:
            folders = (self.path(folder) for folder in ("", ROLLUP_FOLDER, ANSWERS_FOLDER, *OUTPUT_FOLDERS))
            remove_abandoned(folders)
            return
        drafts = [(name, ProcessId.parse(found[1])) for name in self.names("") if (found := DRAFT.fullmatch(name))]
        self.remove(name for name, process in drafts if process and process.is_alive() is False)

    def url(self, relative: str) -> str:
        """Return the path of a local file, or the URL of a remote one."""
        return self.path(relative) if self.is_local else str(self.fs.unstrip_protocol(self.path(relative)))

    @contextmanager
    def convert_errors(self, action: str, relative: str) -> Iterator[None]:
        """Convert errors of the store to UserError, with the file and the fix.

        `action` is "read", "write" or "remove". Two kinds of errors are not converted: reading or removing a file that
        does not exist, which the caller handles, and reading from a local disk, for which there is no general fix.
        """
        if self.is_local:
            with convert_disk_errors(self.path(relative)) if action != "read" else nullcontext():
                yield
            return
        url = self.fs.unstrip_protocol(self.path(relative))
        try:
            with reported(f"waiting to {action} {url}"):
                yield
        except store_errors(ValueError) as error:
            if action != "write" and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
            text = f"cannot {action} {self.url(relative)}: {refusal(error, REMOTE_FIX)}"
            raise UserError(text_without_secrets(text, strip_query=True)) from error


def unless_gone(error: OSError) -> None:
    """Raise an error of listing a folder, but not for one that is gone."""
    if not isinstance(error, FileNotFoundError):
        raise error


def local_contents(folder: str) -> tuple[dict[str, int], list[str]]:
    """Return the sizes in bytes of the files in a local folder by name, and the names of its folders. Raises OSError.

    A file that another process removes or renames meanwhile, such as a temporary one, is left out.
    """
    sizes: dict[str, int] = {}
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file():
                    sizes[entry.name] = entry.stat().st_size
                elif entry.is_dir():
                    folders.append(entry.name)
    return sizes, folders


def output_around(path: str) -> Path | None:
    """Return the output that a local path is, or is within, after its links are followed."""
    real = Path(path).resolve()
    return next((folder for folder in (real, *real.parents) if (folder / MANIFEST_FOLDER).is_dir()), None)


def check_outside_outputs(**paths: str | None) -> None:
    """Raise UserError for the path of an option that is within an output: a takedown would not find the rows in it."""
    for key, path in paths.items():
        if path and (folder := output_around(path)):
            raise UserError(
                f"{key}={path} is within the output {folder}, where a takedown would not find the rows in it; give a "
                "path outside of it"
            )


def check_own_folders(store: Store) -> None:
    """Raise UserError if a folder of an output is a link: a command that writes or removes files here would change files
    there. The folder of a format may be one, as to another disk, if the folder there is marked as its own.
    """
    for path in store.links((ROLLUP_FOLDER, ANSWERS_FOLDER, *OUTPUT_FOLDERS)):
        other, is_format = output_around(path), os.path.basename(path) in FILES
        if other or not is_format:
            place = f"into the output {other}" if other else f"to {os.path.realpath(path)}"
            raise UserError(
                f"{path} is a link {place}, whose files this command could change or remove; put a folder in place of the link"
            )
        check_link(path)


def check_own_files(store: Store) -> None:
    """Raise UserError if files are where runs write theirs, but nothing of a run: it would replace or remove them.

    A run writes its lease and then its record before the first of these files. Called before the lease is held.
    """
    files, folders = store.contents("")
    if files.keys() & {LEASE_FILE, JOB_FILE, COMMAND_FILE}:
        return
    strange = [f"{name}/" for name in OUTPUT_FOLDERS if name in folders and has_shards(store, name)]
    strange += [name for name in (RESOLVED_FILE, STATS_FILE, REPORT_FILE) if name in files]
    if strange and not any(indices(store, kind) for kind in (MANIFEST_FILE, JOURNAL_FILE)):
        raise UserError(
            f"output {store.root} has files that no run of HyperGRIT wrote where a run writes its own, in "
            f"{', '.join(strange)}; give another output=, or move them away"
        )


# The files of shards that an output holds.


def has_shards(store: Store, folder: str) -> bool:
    """Return True if a folder has a file of a shard besides manifests and temporary ones."""
    return any(kind.path(index) in shard_files(index) for kind, index, _ in files_of_shards(store, folder))


def shard_sizes(store: Store, folder: str) -> dict[str, int]:
    """Return the sizes in bytes of the files in a folder of shards by name: one request per 1,000 files of a store.

    Raises UserError for an output in folders of 1,000 shards, which is not read any more.
    """
    files, folders = store.contents(folder)
    if any(name.isascii() and name.isdecimal() for name in folders):
        raise UserError(f"{store.root} {IN_FOLDERS}")
    return files


def files_of_shards(store: Store, folder: str) -> Iterator[tuple[ShardFile, int, int]]:
    """Yield the kind, the shard and the size in bytes of the files of shards in a folder. Raises like `shard_sizes`."""
    for name, size in shard_sizes(store, folder).items():
        if (found := ShardFile.parse(f"{folder}/{name}")) is not None:
            yield *found, size


def indices(store: Store, kind: ShardFile) -> list[int]:
    """Return the sorted indices of the shards that have a file of this kind."""
    return sorted(index for found, index, _ in files_of_shards(store, kind.folder) if found == kind)
