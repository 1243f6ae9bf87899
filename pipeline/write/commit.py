"""Commit a shard while no other process does: a worker that was believed dead may still write the same shard.

- Local disk: files and manifest are published under a lock of the kernel, which the death of its holder releases.
- Object stores have no locks: after the manifest, all files are checked, and the manifest is removed if one is another
  attempt's. A process that dies between an upload and this check may leave another attempt's manifest with its file.

A worker of a command that has lost its output must not write to it at all: its shards belong to another order of the
rows, or to other settings. It names the lease of its command, and is refused if the output has another one.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import UserError
from pipeline.write.store import Store
from pipeline.write.swap import locked
from pipeline.write.temporary import LOCK_SUFFIX
from schemas.files import LEASE_FILE, MANIFEST_FILE
from schemas.manifest import Manifest


@contextmanager
def exclusive(store: Store, index: int) -> Iterator[None]:
    """Keep other processes from publishing files of this shard on a local disk; waits for one that does."""
    if not store.is_local:
        yield
        return
    name = f"{store.file(MANIFEST_FILE, index)}{LOCK_SUFFIX}"  # a killed holder's file is removed as a temporary file
    with store.convert_errors("write", name):
        store.make_folder(name)
        with locked(store.path(name)):
            yield


def check_lease(store: Store, token: str | None) -> None:
    """Raise UserError if a lease other than the one with this token holds the output, or none; None: no check."""
    if token is None:
        return
    content = store.read(LEASE_FILE)
    try:
        holder = None if content is None else json.loads(content)["token"]
    except (ValueError, LookupError, TypeError, RecursionError):
        holder = None
    if holder != token:
        raise UserError(
            f"the command of this process has ended or lost the output {store.root}, and nothing is written; if it has "
            "not finished, run it again"
        )


def is_intact(store: Store, other: Manifest, ours: Manifest) -> bool:
    """Return True if a committed shard has the formats, the origin and the attempt of `ours`, and all its files.

    Their sizes are compared with the manifest, and on S3 their hashes.
    """
    if any(other.get(name) != ours.get(name) for name in ("formats", "origin", "retry")):
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
        store.remove([store.file(MANIFEST_FILE, manifest["shard"])])
        raise OSError(f"{store.url(wrong)} was replaced by another attempt at the same shard")
