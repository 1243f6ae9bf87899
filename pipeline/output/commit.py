"""Write the files of a shard atomically: write them under temporary names, then rename them, the manifest last.

On a local disk, the temporary name is in the same folder, so that renaming is atomic; no two writers share one. For an
object store, files are written to a local temporary folder and then uploaded, because an object becomes visible only
when its upload is complete. `remove_abandoned` (store.py) removes what a killed process leaves.
"""

import errno
import hashlib
import io
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import RawIOBase
from itertools import groupby
from typing import IO, Any, BinaryIO, cast

from hypergrit_common.disk import locked, sync, temporary_name
from hypergrit_common.errors import UserError
from hypergrit_common.files import NotAFileError, file_hash
from hypergrit_common.remote import store_errors
from hypergrit_common.tar import Member, TarError, iter_members, reader_of, round_up_to_block
from pipeline.faults import ShardError
from pipeline.output.lock import Lease, check_lease, hold_lease
from pipeline.output.manifest import manifest_bytes, parse_manifest
from pipeline.output.store import (
    DISK_FIXES,
    LOCK_SUFFIX,
    TEMPORARY,
    Store,
    convert_disk_errors,
    indices,
    remove_abandoned_folders,
    temporary_folder_prefix,
)
from pipeline.output.write.tar import Place, SamplePlace, file_metadata, write_index
from schemas.files import (
    FILES,
    INDEX_FILE,
    INDEX_SUBREDDITS,
    JOURNAL_FILE,
    JOURNAL_FOLDER,
    MANIFEST_FILE,
    ROLLUP_FILE,
    rollup_of,
    shard_files,
)
from schemas.manifest import FileFacts, Journal, Manifest, StagedFile

logger = logging.getLogger("hypergrit")


class HashedFile(RawIOBase):
    """A file that records the size and the SHA-256 of the data written to it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._sha256 = hashlib.sha256()
        self.n_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.n_bytes

    def write(self, data: Any, /) -> int:
        """Write all of `data`: an unbuffered file may accept only a part of it, near a limit for example.

        Raises OSError, also if the file accepts nothing.
        """
        rest = memoryview(data).cast("B")
        n_bytes = rest.nbytes
        while rest.nbytes:
            n_written = self._file.write(rest)
            if not n_written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._sha256.update(rest[:n_written])
            self.n_bytes += n_written
            rest = rest[n_written:]
        return n_bytes

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


class Staging:
    """The unpublished files of a shard. The end of the `with` block removes those that were not published.

    Methods raise UserError if the disk is full, the folder is not writable, a remote store refuses all writing, or a
    file has another size than what was written to it; and ShardError if only this machine or this upload failed.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.files: dict[str, FileFacts] = {}
        self._staged: dict[str, str] = {}  # relative path -> temporary local path
        self._kept = False
        self._stack = ExitStack()

    def __enter__(self) -> "Staging":
        self._folder = ""
        if not self.store.is_local:
            remove_abandoned_folders(tempfile.gettempdir())
            with scratch_errors(tempfile.gettempdir()):
                folder = tempfile.TemporaryDirectory(prefix=temporary_folder_prefix(), ignore_cleanup_errors=True)
            self._folder = self._stack.enter_context(folder)
        return self

    def __exit__(self, *_: object) -> None:
        for path in () if self._kept else self._staged.values():
            with suppress(OSError):  # of a broken disk; the first error counts, and a later job removes the file
                os.remove(path)
        self._stack.close()

    @contextmanager
    def open(self, relative: str, rows: int) -> Iterator[IO[bytes]]:
        """Open a file for `rows` rows under its temporary name; sync it to disk at the end of the `with` block."""
        final = self.store.path(relative)
        path = temporary_name(final) if self.store.is_local else f"{self._folder}/{relative.replace('/', '_')}"
        self._staged[relative] = path
        with convert_disk_errors(final) if self.store.is_local else scratch_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb", buffering=0) as file:
                hashed = HashedFile(cast(BinaryIO, file))
                yield cast(IO[bytes], hashed)
                os.fsync(file.fileno())
        self.files[relative] = {"bytes": hashed.n_bytes, "sha256": hashed.sha256, "rows": rows}

    def keep(self, journal: str) -> dict[str, StagedFile]:
        """Leave the staged files in the output if they are not published; return them for the `journal` of the shard.

        A remote store has a copy of each in the folder of the journal.
        """
        drafts: dict[str, StagedFile] = {}
        for relative, path in self._staged.items():
            if self.store.is_local:
                draft = os.path.relpath(path, self.store.root)
            else:
                draft = temporary_name(f"{os.path.dirname(journal)}/{relative.replace('/', '_')}")
                self.store.upload(path, draft, self.files[relative])
            drafts[relative] = {**self.files[relative], "draft": draft}
        self._kept = True
        return drafts

    def publish(self) -> None:
        """Rename or upload all staged files to their final names, in the order in which they were opened."""
        for relative in self._staged:
            self.publish_file(relative)
        self._staged.clear()

    def publish_file(self, relative: str) -> None:
        """Rename or upload one staged file to its final name."""
        path, final = self._staged[relative], self.store.path(relative)
        with convert_disk_errors(final) if self.store.is_local else scratch_errors(path):
            check_size(path, self.files[relative]["bytes"])
        if not self.store.is_local:
            self.store.upload(path, relative, self.files[relative])
            os.remove(path)
            return
        with convert_disk_errors(final):
            os.replace(path, final)
            sync(os.path.dirname(final))


@contextmanager
def scratch_errors(path: str) -> Iterator[None]:
    """Convert errors of the disk of this machine, which others need not have, to ShardError with the host name."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FIXES:
            raise
        raise ShardError(
            f"cannot write {path} on {socket.gethostname()}: {os.strerror(error.errno)}; give that machine more space "
            "for temporary files, or set TMPDIR there to a folder with space that this user may write to"
        ) from error


@contextmanager
def local_errors() -> Iterator[None]:
    """Convert errors of writing to a temporary folder of this machine, whatever they were converted to, to ShardError."""
    try:
        with scratch_errors(tempfile.gettempdir()):
            yield
    except UserError as error:
        raise ShardError(f"{error} (on {socket.gethostname()}, in the folder for temporary files)") from error


def check_size(path: str, n_bytes: int) -> None:
    """Raise UserError if a file does not have `n_bytes` bytes, all of which were written to it."""
    size = os.path.getsize(path)
    if size != n_bytes:
        raise UserError(
            f"{path} has {size} bytes on the disk, but {n_bytes} were written; check the disk, and run the same command "
            "again"
        )


# Commit a shard while no other process does: a worker that was believed dead may still write the same shard.
#
# - Local disk: files and manifest are published under a lock of the kernel, which the death of its holder releases.
# - Object stores have no locks: after the manifest, all files are checked, and the manifest is removed if one is another
#   attempt's. A process that dies between an upload and this check may leave another attempt's manifest with its file.
#
# A worker whose job or command has lost the output must not write to it at all (pipeline.output.lock). It names the lease,
# and is refused if the output has another one.


@contextmanager
def exclusive(store: Store, index: int) -> Iterator[None]:
    """Keep other processes from publishing files of this shard on a local disk; waits for one that does."""
    if not store.is_local:
        yield
        return
    name = f"{MANIFEST_FILE.path(index)}{LOCK_SUFFIX}"  # a killed holder's file is removed as a temporary file
    with store.convert_errors("write", name):
        store.make_folder(name)
        with locked(store.path(name)):
            yield


def publish(
    store: Store,
    staging: Staging,
    manifest: Manifest,
    lease: str | None,
    unused: Iterable[str] = (),
    replaces: bool = True,
) -> None:
    """Publish the staged files of a shard, and then `manifest`, while the lease with this token holds the output.

    The rollup that counts the shard and the manifest of an earlier run are removed first: until the new manifest is there,
    readers ignore the shard. Its files are replaced, not removed, so that an attempt never meets a manifest without its
    files; `unused` ones are removed. The lease is read before the first file changes, and again before the manifest:
    uploads may take minutes. False for `replaces` if there is no manifest of an earlier run. Raises like `check_lease`.
    """
    name = MANIFEST_FILE.path(manifest["shard"])
    check_lease(store, lease)
    store.remove([ROLLUP_FILE.path(rollup_of(manifest["shard"])), *([name] if replaces else [])])
    staging.publish()
    store.remove(unused)
    with staging.open(name, rows=manifest["counts"]["read"]) as file:
        file.write(manifest_bytes(manifest))
    check_lease(store, lease)
    staging.publish()


# Replace a finished shard: a kill at any moment leaves the old shard or the new one, and no row is lost.
#
# The new files are complete before a journal of the shard names them, and nothing of the old shard changes before that.
# Whoever opens the output to write to it finishes what a journal describes: the files that have their temporary names
# yet are published, then the manifest.


def replace(store: Store, staging: Staging, manifest: Manifest, lease: str | None, unused: Sequence[str] = ()) -> None:
    """Publish the staged files of a finished shard in place of its own, like `publish`, under a journal."""
    name = JOURNAL_FILE.path(manifest["shard"])
    check_lease(store, lease)
    journal: Journal = {"manifest": manifest, "files": staging.keep(name), "unused": list(unused)}
    store.write(name, json.dumps(journal))
    publish(store, staging, manifest, lease, unused)
    remove_journal(store, name, journal)


def remove_journal(store: Store, name: str, journal: Journal) -> None:
    """Remove a journal, and the copies of files that are published."""
    store.remove([name, *(file["draft"] for file in journal["files"].values())])


@contextmanager
def open_output(store: Store) -> Iterator[Lease]:
    """Hold the lease of an output: its interrupted replacements are finished, and drafts of dead processes removed.

    Raises like `hold_lease`.
    """
    with hold_lease(store) as lease:
        finish_replacements(store, lease)
        store.remove_drafts()
        yield lease


def finish_replacements(store: Store, lease: Lease) -> None:
    """Finish all replacements that were interrupted; call it before drafts are removed, which journals may name."""
    for index in indices(store, JOURNAL_FILE):
        finish_replacement(store, index, lease)
    if not store.is_local:
        drafts = filter(TEMPORARY.fullmatch, store.names(JOURNAL_FOLDER))
        store.remove_many(f"{JOURNAL_FOLDER}/{name}" for name in drafts)


def finish_replacement(store: Store, index: int, lease: Lease) -> None:
    """Finish what the journal of a shard describes. If its files are lost, the shard stays as it is: old, or unfinished."""
    name = JOURNAL_FILE.path(index)
    try:
        journal: Journal = json.loads(store.read(name) or b"")
        check_journal(index, journal)
        files = journal["files"]
        is_whole = all(has_content(store, file["draft"], file) or has_content(store, final, file)
                       for final, file in files.items())  # fmt: skip
        new = manifest_bytes(journal["manifest"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, NotAFileError) as error:
        logger.warning("%s is damaged (%s), and removed; the job computes its shard again", store.url(name), error)
        store.remove([name])
        return
    if is_whole:
        logger.info("shard %d: finishing a replacement that was interrupted", index)
        with exclusive(store, index):
            lease.check()
            store.remove([ROLLUP_FILE.path(rollup_of(index)), MANIFEST_FILE.path(index)])
            for final, file in files.items():
                if has_content(store, file["draft"], file):
                    move(store, file["draft"], final, file)
            store.remove(journal["unused"])
            store.write_bytes(MANIFEST_FILE.path(index), new)
    else:
        logger.warning("%s: its files are lost; the shard was not replaced", store.url(name))
    remove_journal(store, name, journal)


def check_journal(index: int, journal: Journal) -> None:
    """Raise ValueError unless a journal names only files of its shard, and drafts beside them or beside the journal."""
    own = shard_files(index)
    folders = {os.path.dirname(name) for name in (*own, JOURNAL_FILE.path(index))}
    drafts = [file["draft"] for file in journal["files"].values()]
    if not {*journal["files"], *journal["unused"]} <= {*own} or any(
        os.path.dirname(draft) not in folders or not TEMPORARY.fullmatch(os.path.basename(draft)) for draft in drafts
    ):
        raise ValueError("it names files of others")
    manifest = parse_manifest(manifest_bytes(journal["manifest"]))
    if manifest is None or manifest["shard"] != index:
        raise ValueError("it has no manifest of the shard")


def has_content(store: Store, relative: str, facts: FileFacts) -> bool:
    """Return True if a file has this size, and this hash where it can be told without a download."""
    if not store.is_local:
        return store.has(relative, facts)
    return store.size(relative) == facts["bytes"] and file_hash(store.path(relative)) == facts["sha256"]


def move(store: Store, draft: str, final: str, facts: FileFacts) -> None:
    """Give a file its final name; in a remote store, by a download and an upload, which is checked."""
    if store.is_local:
        with convert_disk_errors(store.path(final)):
            store.make_folder(final)
            os.replace(store.path(draft), store.path(final))
            sync(os.path.dirname(store.path(final)))
        return
    with scratch_errors(tempfile.gettempdir()), tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
        path = f"{folder}/draft"
        with store.convert_errors("read", draft):
            store.fs.get_file(store.path(draft), path)
        store.upload(path, final, facts)


def is_intact(store: Store, other: Manifest, ours: Manifest) -> bool:
    """Return True if a committed shard has the formats and the origin of `ours`, and all its files.

    Their sizes are compared with the manifest, and on S3 their hashes.
    """
    if any(other.get(name) != ours.get(name) for name in ("formats", "origin")):
        return False
    files = other["files"].items()
    if store.is_local:
        return all(store.size(name) == facts["bytes"] for name, facts in files)
    return all(store.has(name, facts) for name, facts in files)


def check_committed(store: Store, manifest: Manifest) -> None:
    """Remove the manifest and raise OSError if a remote file of the shard is not the one that it describes."""
    if store.is_local:
        return
    wrong = next((name for name, facts in manifest["files"].items() if not store.has(name, facts)), None)
    if wrong is not None:
        store.remove([MANIFEST_FILE.path(manifest["shard"])])
        raise OSError(f"{store.url(wrong)} was replaced by another attempt at the same shard")


# Restore a lost index of a shard from the headers of its tars, so that its images need not be downloaded again.


def restore_index(store: Store, manifest: Manifest, formats: Sequence[str]) -> bool:
    """Write the index of a shard again; return False if its tars do not give the bytes that the manifest names.

    `formats` are those of the shard, in the order in which they were written. Raises UserError if the index cannot be
    written.
    """
    name = INDEX_FILE.path(manifest["shard"])
    facts = manifest["files"][name]
    content = find_content(store, manifest, formats, facts["sha256"])
    if content is None:
        return False
    with Staging(store) as staging:
        with staging.open(name, rows=0) as file:
            file.write(content)
        staging.publish()
    return True


def find_content(store: Store, manifest: Manifest, formats: Sequence[str], sha256: str) -> bytes | None:
    """Return the index with this hash, with or without the mark for subreddits; None if neither has it."""
    tars = {kind: FILES[kind][0].path(manifest["shard"]) for kind in formats if FILES[kind][0].suffix == ".tar"}
    try:
        places = {kind: list(read_places(store, name)) for kind, name in tars.items()}
    except store_errors(ValueError, TarError):
        return None
    metadata = file_metadata(manifest["provenance"])
    for mark in ({}, {INDEX_SUBREDDITS: "true"}):
        file = io.BytesIO()
        write_index(file, places, metadata | mark)
        if hashlib.sha256(content := file.getvalue()).hexdigest() == sha256:
            return content
    return None


def read_places(store: Store, name: str) -> Iterator[SamplePlace]:
    """Yield the places of the samples of a tar. Raises TarError and errors of the store."""
    with store.open(name) as file:
        members = iter_members(reader_of(file), 0, file.seek(0, os.SEEK_END))
        for key, found in groupby(members, key_of):
            sample = list(found)
            places = [Place(item.name.partition(".")[2], item.data_offset, item.size) for item in sample]
            end = places[-1].offset + round_up_to_block(places[-1].size)
            yield SamplePlace(key, sample[0].header_offset, end, places)


def key_of(member: Member) -> str:
    """Return the key of a member's sample."""
    return member.name.partition(".")[0]
