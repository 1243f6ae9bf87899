"""The lease of an output: one job at a time writes to it.

The lease is a small file that only one process can create. Its holder renews it every `HEARTBEAT_S` and removes it at
the end. The lease of a dead process of this machine is taken over at once. A process of another machine cannot be seen:
its lease is watched, and taken over if it is not renewed within `EXPIRY_S` of the last sign of life. If the clocks
differ, the watch lasts at least `WATCH_S`, in which a live holder renews it.

A holder that was cut off, whose lease another job has taken over, learns of it at the next renewal or check and stops.
Its workers, which may go on even if it was killed, are refused when they commit (pipeline.output.lock).
"""

import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from hypergrit_common.disk import locked
from hypergrit_common.errors import UserError
from hypergrit_common.processes import ProcessId, this_process
from hypergrit_common.remote import is_s3
from pipeline.faults import ShardError
from pipeline.output.store import Store, write_atomically
from schemas import job as schemas
from schemas.files import LEASE_FILE

# The fence of an output: workers commit only while the lease of their own job or command holds it (pipeline.output.lock).
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


def token_of(content: bytes | None) -> str | None:
    """Return the token of a lease, which stays the same when it is renewed; None if the content is no lease."""
    try:
        return str(json.loads(content or b"")["token"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def describe(content: bytes | None) -> str:
    """Describe the holder of a lease for messages."""
    if content is None:
        return "a job that has ended"
    try:
        lease: schemas.Lease = json.loads(content)
        return f"a job on host {lease['host']} (process {lease['pid']}, started {lease['started']})"
    except (ValueError, LookupError, TypeError, RecursionError):
        return "an unknown job"


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
                write_atomically(path, new)
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


def error_code(error: BaseException) -> str:
    """Return the code that S3 gave for an error, "" for other errors."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


logger = logging.getLogger("hypergrit")

HEARTBEAT_S: Final = 10.0
EXPIRY_S: Final = 60.0
WATCH_S: Final = 25.0
POLL_S: Final = 1.0
SETTLE_S: Final = 1.0
"""Pause before the lease is read back from a store that may not support conditional writes."""
ATTEMPTS: Final = 20

Item = TypeVar("Item")


class Lease:
    """The lease that this process holds."""

    def __init__(self, store: Store, content: bytes) -> None:
        self.store, self.content = store, content
        self.loser: str | None = None
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_until_end, name="lease", daemon=True)
        self._thread.start()

    @property
    def token(self) -> str:
        """The random text of this lease, by which workers know it (pipeline.output.lock)."""
        return str(json.loads(self.content)["token"])

    def check(self) -> None:
        """Read the lease. Raises UserError if another job has taken it over."""
        with self._lock:
            self.recheck()

    def recheck(self) -> None:
        """Check the lease within its `fence`, for which a renewal waits while it has the lock of `check`."""
        self._read()
        self.raise_if_lost()

    def raise_if_lost(self) -> None:
        """Raise UserError if the last renewal or check found the lease of another job."""
        if self.loser is not None:
            raise UserError(
                f"this job has lost the output {self.store.root} to {self.loser}, and stops; its finished shards are "
                "kept. Stop the other job and run the same command again, or let the other job finish"
            )

    def guard(self, items: Iterable[Item]) -> Iterator[Item]:
        """Pass on `items`; raise UserError once the lease is lost."""
        for item in items:
            self.raise_if_lost()
            yield item

    def release(self) -> None:
        """Remove the lease if it is still that of this process."""
        self._end.set()
        self._thread.join(EXPIRY_S)
        try:
            if not swap(self.store, LEASE_FILE, self.content, None) and self._read():
                swap(self.store, LEASE_FILE, self.content, None)
        except (UserError, OSError) as error:
            logger.warning("the lease of %s cannot be removed: %s", self.store.root, error)

    def _renew_until_end(self) -> None:
        while not self._end.wait(HEARTBEAT_S) and self.loser is None:
            try:
                self.renew()
            except Exception as error:  # a store that does not answer; the next renewal may succeed
                logger.warning("the lease of %s cannot be renewed: %s", self.store.root, error)

    def _read(self) -> bool:
        """Read the lease; return True if it is ours, and else note its holder.

        A renewal whose answer was lost may have changed its heartbeat.
        """
        content = self.store.read(LEASE_FILE)
        if content != self.content and token_of(content) != token_of(self.content):
            self.loser = describe(content)
            return False
        self.content = content or self.content
        return True

    def renew(self) -> None:
        """Write the present time into the lease; find out if it is lost."""
        with self._lock:
            values: schemas.Lease = json.loads(self.content)
            renewed = encode({**values, "heartbeat": time.time()})
            if swap(self.store, LEASE_FILE, self.content, renewed):
                self.content = renewed
            else:
                self._read()


@contextmanager
def hold_lease(store: Store) -> Iterator[Lease]:
    """Hold the lease of an output for the `with` block.

    Raises UserError if another job holds it; the message names its host, process and start.
    """
    lease = Lease(store, acquire(store))
    store.fence = partial(fence, store, lease.recheck)
    try:
        yield lease
    finally:
        store.fence = nullcontext
        lease.release()


def acquire(store: Store) -> bytes:
    """Create the lease, or take over that of a dead job; return its content. Raises UserError if a job holds it."""
    for _ in range(ATTEMPTS):
        current = store.read(LEASE_FILE)
        if current is not None:
            check_abandoned(store, current)
        ours = new_lease()
        if swap(store, LEASE_FILE, current, ours):
            if store.is_local:
                return ours
            time.sleep(SETTLE_S)
            if store.read(LEASE_FILE) == ours:
                return ours
    raise UserError(f"the lease {store.url(LEASE_FILE)} changes all the time; start one job at a time on an output")


def new_lease() -> bytes:
    """Return the content of a new lease of this process."""
    process = this_process()
    values: schemas.Lease = {
        "host": socket.gethostname(),
        "process": str(process),
        "pid": process.pid,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "token": secrets.token_hex(8),
        "heartbeat": time.time(),
    }
    return encode(values)


def encode(lease: schemas.Lease) -> bytes:
    """Return the content of the file of a lease."""
    return json.dumps(lease, indent=1).encode()


def check_abandoned(store: Store, content: bytes) -> None:
    """Raise UserError unless the holder of a lease is dead; wait to find out about a holder on another machine."""
    try:
        lease: schemas.Lease = json.loads(content)
        process, heartbeat = ProcessId.parse(lease["process"]), float(lease["heartbeat"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # not a lease: leases are written atomically
    alive = process.is_alive() if process else None
    if alive is None:
        age = abs(time.time() - heartbeat)  # the clock of the holder may be ahead
        alive = changes_within(store, content, max(WATCH_S, EXPIRY_S - age))
    if alive:
        raise UserError(
            f"the output {store.root} is in use by {describe(content)}; wait for that job, stop it, or give another "
            "output="
        )
    logger.warning("taking over the output %s from %s, which has ended without removing its lease", store.root,
                   describe(content))  # fmt: skip


def changes_within(store: Store, content: bytes, seconds: float) -> bool:
    """Return True as soon as another process changes the lease, False if none does so within `seconds`.

    The removal of the lease is no change: it is then free.
    """
    logger.info("waiting up to %.0f s for a sign of life of %s, which holds %s", seconds, describe(content), store.root)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
        if (current := store.read(LEASE_FILE)) != content:
            return current is not None
    return False
