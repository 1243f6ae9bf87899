"""The lease of an output, a folder or a URL: one process at a time writes to it.

The lease is a small file that only one process can create. Its holder renews it every `HEARTBEAT_S` and removes it at
the end. The lease of a dead process of this machine is taken over at once. A process of another machine cannot be seen:
its lease is watched, and taken over if it is not renewed within `EXPIRY_S` of the last sign of life. If the clocks
differ, the watch lasts at least `WATCH_S`, in which a live holder renews it.

A holder that was cut off, whose lease another process has taken over, learns of it at the next renewal or check.
"""

import json
import logging
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Self, TypeVar

from hypergrit_common.errors import UserError
from hypergrit_common.processes import ProcessId, this_process
from schemas import job as schemas

logger = logging.getLogger("hypergrit")

HEARTBEAT_S: Final = 10.0
EXPIRY_S: Final = 60.0
WATCH_S: Final = 25.0
POLL_S: Final = 1.0
SETTLE_S: Final = 1.0
"""Pause before the lease is read back from a store that may not support conditional writes."""
ATTEMPTS: Final = 20

Item = TypeVar("Item")


class LeaseFile(ABC):
    """The lease of an output for this process. Subclasses read and replace its file.

    `kept` tells what remains if it is lost. A file without conditional writes is read back after `settle_s`.
    """

    def __init__(self, output: str, kept: str, settle_s: float) -> None:
        self.output, self.kept, self.settle_s = output, kept, settle_s
        self.content = b""
        self.loser: str | None = None
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_until_end, name="lease", daemon=True)

    @abstractmethod
    def read(self) -> bytes | None:
        """Return the content of the file, None without one. Raises UserError and OSError."""

    @abstractmethod
    def swap(self, old: bytes | None, new: bytes | None) -> bool:
        """Replace the content `old` by `new`; None stands for no file. Return False if it has another content."""

    @contextmanager
    def held(self) -> Iterator[Self]:
        """Hold the lease for the `with` block.

        Raises UserError if another process holds it; the message names its host, process and start.
        """
        self.acquire()
        self._thread.start()
        try:
            yield self
        finally:
            self.release()

    def acquire(self) -> None:
        """Create the lease, or take over that of a dead process. Raises UserError if a process holds it."""
        for _ in range(ATTEMPTS):
            current = self.read()
            if current is not None:
                self._check_abandoned(current)
            self.content = new_lease()
            if self.swap(current, self.content):
                time.sleep(self.settle_s)
                if not self.settle_s or self.read() == self.content:
                    return
        raise UserError(f"the lease of {self.output} changes all the time; start one job at a time on an output")

    @property
    def token(self) -> str:
        """The random text of this lease, by which workers know it."""
        return str(json.loads(self.content)["token"])

    def check(self) -> None:
        """Read the lease. Raises UserError if another process has taken it over."""
        with self._lock:
            self.recheck()

    def recheck(self) -> None:
        """Check the lease while a renewal waits anyway, since this process holds what it needs."""
        self._read()
        self.raise_if_lost()

    def raise_if_lost(self) -> None:
        """Raise UserError if the last renewal or check found the lease of another process."""
        if self.loser is not None:
            raise UserError(
                f"this job has lost the output {self.output} to {self.loser}, and stops; {self.kept}. Stop the other job "
                "and run the same command again, or let the other job finish"
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
            if not self.swap(self.content, None) and self._read():
                self.swap(self.content, None)
        except (UserError, OSError) as error:
            logger.warning("the lease of %s cannot be removed: %s", self.output, error)

    def renew(self) -> None:
        """Write the present time into the lease; find out if it is lost."""
        with self._lock:
            values: schemas.LeaseRecord = json.loads(self.content)
            renewed = encode({**values, "heartbeat": time.time()})
            if self.swap(self.content, renewed):
                self.content = renewed
            else:
                self._read()

    def _renew_until_end(self) -> None:
        while not self._end.wait(HEARTBEAT_S) and self.loser is None:
            try:
                self.renew()
            except Exception as error:  # a store that does not answer; the next renewal may succeed
                logger.warning("the lease of %s cannot be renewed: %s", self.output, error)

    def _read(self) -> bool:
        """Read the lease; return True if it is ours, and else note its holder.

        A renewal whose answer was lost may have changed its heartbeat.
        """
        content = self.read()
        if content != self.content and token_of(content) != token_of(self.content):
            self.loser = describe(content)
            return False
        self.content = content or self.content
        return True

    def _check_abandoned(self, content: bytes) -> None:
        """Raise UserError unless the holder of a lease is dead; wait to find out about a holder on another machine."""
        try:
            lease: schemas.LeaseRecord = json.loads(content)
            process, heartbeat = ProcessId.parse(lease["process"]), float(lease["heartbeat"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # not a lease: leases are written atomically
        alive = process.is_alive() if process else None
        if alive is None:
            age = abs(time.time() - heartbeat)  # the clock of the holder may be ahead
            alive = self._changes_within(content, max(WATCH_S, EXPIRY_S - age))
        if alive:
            raise UserError(
                f"the output {self.output} is in use by {describe(content)}; wait for that job, stop it, or give another "
                "output="
            )
        logger.warning("taking over the output %s from %s, which has ended without removing its lease", self.output,
                       describe(content))  # fmt: skip

    def _changes_within(self, content: bytes, seconds: float) -> bool:
        """Return True as soon as another process changes the lease, False if none does so within `seconds`.

        The removal of the lease is no change: it is then free.
        """
        holder = describe(content)
        logger.info("waiting up to %.0f s for a sign of life of %s, which holds %s", seconds, holder, self.output)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
            if (current := self.read()) != content:
                return current is not None
        return False


def new_lease() -> bytes:
    """Return the content of a new lease of this process."""
    process = this_process()
    values: schemas.LeaseRecord = {
        "host": socket.gethostname(),
        "process": str(process),
        "pid": process.pid,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "token": secrets.token_hex(8),
        "heartbeat": time.time(),
    }
    return encode(values)


def encode(lease: schemas.LeaseRecord) -> bytes:
    """Return the content of the file of a lease."""
    return json.dumps(lease, indent=1).encode()


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
        lease: schemas.LeaseRecord = json.loads(content)
        return f"a job on host {lease['host']} (process {lease['pid']}, started {lease['started']})"
    except (ValueError, LookupError, TypeError, RecursionError):
        return "an unknown job"
