"""Compare-and-swap of a small file in the output, so that of several processes only one succeeds.

- Local disk: under a lock of the kernel (flock), also over NFS 4.
- S3: a conditional PUT (If-None-Match, If-Match), which AWS, MinIO, Ceph, R2 and others support.
- Other stores, and S3 stores that refuse conditions: read, then write. Two processes may then both succeed; the content
  that is read back after a pause tells which of them wrote last.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from common.remote import is_s3
from pipeline.write.store import Store, write_atomically

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
                write_atomically(path, new)
            return True


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of a local lock file, which the end of the `with` block or the death of the process removes."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The previous holder removes the file; a lock on a removed file is void.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            os.remove(path)
        os.close(descriptor)


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


def error_code(error: BaseException) -> str:
    """Return the code that S3 gave for an error, "" for other errors."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
