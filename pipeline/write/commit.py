"""Commit a shard while no other process does: a worker that was believed dead may still write the same shard.

- Local disk: files and manifest are published under a lock of the kernel, which the death of its holder releases.
- Object stores have no locks: after the manifest, all files are checked, and the manifest is removed if one is another
  attempt's. A process that dies between an upload and this check may leave another attempt's manifest with its file.

A worker whose job or command has lost the output must not write to it at all (pipeline.write.fence). It names the lease,
and is refused if the output has another one.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pipeline.write.fence import check_lease
from pipeline.write.manifest import manifest_bytes
from pipeline.write.staging import Staging
from pipeline.write.store import Store
from pipeline.write.swap import locked
from pipeline.write.temporary import LOCK_SUFFIX
from schemas.files import MANIFEST_FILE, ROLLUP_FILE, rollup_of
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
    name = store.file(MANIFEST_FILE, manifest["shard"])
    check_lease(store, lease)
    store.remove([ROLLUP_FILE.format(rollup_of(manifest["shard"])), *([name] if replaces else [])])
    staging.publish()
    store.remove(unused)
    with staging.open(name, rows=manifest["counts"]["read"]) as file:
        file.write(manifest_bytes(manifest))
    check_lease(store, lease)
    staging.publish()


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
