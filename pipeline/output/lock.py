"""The lease of an output, under which workers commit and small files are replaced.

Workers of a driver that was cut off or killed may go on; they are refused when they commit.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from hypergrit_common.disk import atomic_write, locked
from hypergrit_common.errors import UserError
from hypergrit_common.lease import SETTLE_S, LeaseFile, describe, token_of
from hypergrit_common.remote import error_code, is_s3
from pipeline.faults import ShardError
from pipeline.output.store import Store, check_own_folders
from schemas.files import LEASE_FILE

# The fence of an output: workers commit only while the lease of their own job or command holds it (hypergrit_common.lease).
#
# The driver of a job may be killed or cut off while its workers go on. The next job or command then takes over the lease,
# with another token, and what the old workers would write belongs to other settings, or to another order of the rows.


def check_lease(store: Store, token: str | None) -> None:
    """Raise UserError if a lease with another token holds the output. Without a token nothing is checked.

    Raises ShardError for a missing or unreadable lease: this machine may see another folder at the path of the output.
    """
    if token is None:
        return
    host = socket.gethostname()
    try:
        content = store.read(LEASE_FILE)
    except (UserError, OSError) as error:
        raise ShardError(f"the lease of this job cannot be read on {host}: {error}") from error
    holder = token_of(content)
    if holder is None:
        raise ShardError(
            f"there is no lease {store.url(LEASE_FILE)} on {host}, and nothing is written: the job has ended, or its "
            "output is not mounted there"
        )
    if holder != token:
        raise UserError(
            f"the job or command of this process has lost the output {store.root} to {describe(content)}, and nothing is "
            "written; if it has not finished, run it again later"
        )


@contextmanager
def fence(store: Store, check: Callable[[], object]) -> Iterator[None]:
    """Check the lease, which on a local disk nobody takes over during the `with` block. Raises what `check` raises.

    A process that stood still and goes on would else replace a file of the process that has taken over meanwhile.
    """
    with locked(f"{store.path(LEASE_FILE)}.lock") if store.is_local else nullcontext():
        check()
        yield


def fenced(output: str, token: str | None) -> Store:
    """Return an output to which a worker writes small files only while the lease with this token holds it."""
    store = Store(output)
    if token is not None:
        store.fence = partial(fence, store, partial(check_lease, store, token))
    return store


# Compare-and-swap of a small file in the output, so that of several processes only one succeeds.
#
# - Local disk: under a lock of the kernel (flock), also over NFS 4.
# - S3: a conditional PUT (If-None-Match, If-Match), which AWS, MinIO, Ceph, R2 and others support.
# - Other stores, and S3 stores that refuse conditions: read, then write. Two processes may then both succeed; the content
#   that is read back after a pause tells which of them wrote last.

CHANGED: Final = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
"""Codes of S3 for a condition that does not hold."""
UNSUPPORTED: Final = ("NotImplemented", "501", "InvalidArgument", "InvalidRequest")
"""Codes of S3 for a request with an unknown condition."""


def swap(store: Store, relative: str, old: bytes | None, new: bytes | None) -> bool:
    """Replace the content `old` of a file by `new`; None stands for a file that does not exist.

    Returns False if the file has another content. Raises UserError if the store refuses a request.
    """
    if store.is_local:
        return _swap_local(store, relative, old, new)
    if new is None:
        is_ours = store.read(relative) == old
        if is_ours:
            store.remove([relative])
        return is_ours
    # A PUT whose answer was lost is repeated and then fails although it succeeded.
    return _put(store, relative, old, new) or store.read(relative) == new


def _swap_local(store: Store, relative: str, old: bytes | None, new: bytes | None) -> bool:
    path = store.path(relative)
    with store.convert_errors("write", relative):
        store.make_folder(relative)
        with locked(f"{path}.lock"):
            if store.read(relative) != old:
                return False
            if new is None:
                store.remove([relative])
            else:
                with atomic_write(Path(path), cleans=False) as draft:
                    draft.write_bytes(new)
            return True


def _put(store: Store, relative: str, old: bytes | None, new: bytes) -> bool:
    """Replace a remote file with one request that depends on its present content, where the store supports it."""
    path = store.path(relative)
    condition: dict[str, Any] = {"IfNoneMatch": "*"}
    if old is not None:
        try:
            with store.convert_errors("read", relative):
                condition = {"IfMatch": store.fs.info(path).get("ETag")}
        except FileNotFoundError:
            return False
    if store.read(relative) != old:
        return False
    with store.convert_errors("write", relative):
        store.make_folder(relative)
        if is_s3(store.fs):
            bucket, key, _ = store.fs.split_path(path)
            try:
                store.fs.call_s3("put_object", Bucket=bucket, Key=key, Body=new, **condition)
                return True
            except (OSError, NotImplementedError) as error:
                if isinstance(error, FileExistsError | FileNotFoundError) or error_code(error) in CHANGED:
                    return False
                if error_code(error) not in UNSUPPORTED:
                    raise
        store.fs.pipe_file(path, new)
        return True


class Lease(LeaseFile):
    """The lease of an output that this process holds."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.root, "its finished shards are kept", 0.0 if store.is_local else SETTLE_S)
        self.store = store

    def read(self) -> bytes | None:
        """Return the content of the file. Raises UserError."""
        return self.store.read(LEASE_FILE)

    def swap(self, old: bytes | None, new: bytes | None) -> bool:
        """Replace the content of the file. Raises UserError."""
        return swap(self.store, LEASE_FILE, old, new)


@contextmanager
def hold_lease(store: Store) -> Iterator[Lease]:
    """Hold the lease of an output for the `with` block.

    Raises UserError if another job holds it, and like `check_own_folders`.
    """
    check_own_folders(store)
    with Lease(store).held() as lease:
        store.fence = partial(fence, store, lease.recheck)
        try:
            yield lease
        finally:
            store.fence = nullcontext
