"""Lack of open files, memory, threads or ports on this machine: rows wait for its end, and are not dropped for it."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from common.errors import is_machine_error
from pipeline.download.open_files import lacks_files

logger = logging.getLogger("hypergrit")

PAUSE_S: Final = 0.2
MAX_PAUSE_S: Final = 3.0
"""Pause before another try, which doubles with each up to MAX_PAUSE_S."""
PATIENCE_S: Final = 60.0
"""Time in which nothing succeeds, after which the shard fails. A look-up of the C library ends within 30 s."""
FIX: Final = (
    "raise the limits of this machine (ulimit -n, ulimit -u), or lower download.concurrency and dns_concurrency"
)

NETWORK_FIX: Final = "check the network of this machine and download.proxy, and its name server"


def fix_of(lack: OSError) -> str:
    """Return the advice for a lack."""
    return NETWORK_FIX if lack.errno == errno.ENETDOWN else FIX


class Shortage:
    """The lack that the rows of a worker share; `clock` is the time of the event loop.

    A lack passes when others return what they hold. It is an error of the machine if nobody gets anything for
    PATIENCE_S.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.felt_s = self.worked_s = float("-inf")
        self._is_logged = False

    def worked(self) -> None:
        """Note a look-up or an attempt that had what it needed."""
        self.worked_s = self.clock()

    def felt_since(self, start_s: float) -> bool:
        """Return True if this machine lacked something since `start_s`, or does now."""
        return self.felt_s >= start_s or lacks_files()

    def feel(self, lack: OSError) -> None:
        """Note a lack; the first is logged."""
        self.felt_s = self.clock()
        if not self._is_logged:
            self._is_logged = True
            logger.warning("%s on %s: rows wait until that ends; %s", lack.strerror, socket.gethostname(), fix_of(lack))


class Patience:
    """The tries of one row or name."""

    def __init__(self, shortage: Shortage) -> None:
        self._shortage = shortage
        self._start_s: float | None = None
        self._pause_s = PAUSE_S

    async def wait(self, lack: OSError) -> None:
        """Wait before the next try. Raises OSError with the number of `lack` if it lasts too long."""
        shortage = self._shortage
        shortage.feel(lack)
        now = shortage.clock()
        self._start_s = now if self._start_s is None else self._start_s
        if now - max(self._start_s, shortage.worked_s) >= PATIENCE_S:
            where = f"in the download for {PATIENCE_S:g} s on {socket.gethostname()}"
            raise OSError(lack.errno, f"{lack.strerror} {where}; {fix_of(lack)}") from lack
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    @property
    def is_alone(self) -> bool:
        """True if this one has waited for PATIENCE_S while others had what they needed."""
        if self._start_s is None:
            return False
        shortage = self._shortage
        return shortage.clock() - self._start_s >= PATIENCE_S and shortage.worked_s > self._start_s


def is_doubtful(error: object) -> bool:
    """Return True for EINVAL and EBUSY of `getaddrinfo`: usually, but not certainly, a lack of open files."""
    return isinstance(error, OSError) and error.errno in (errno.EINVAL, errno.EBUSY)


def lack_behind(error: BaseException) -> OSError | None:
    """Return what the machine lacked for a look-up of `getaddrinfo` to fail; None if it lacked nothing."""
    if isinstance(error, socket.gaierror):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) if error.errno == socket.EAI_MEMORY else None
    if isinstance(error, MemoryError):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if isinstance(error, OSError):
        if is_machine_error(error):
            return error
        return OSError(errno.EMFILE, f"{error.strerror} in a look-up") if is_doubtful(error) else None
    return OSError(errno.EAGAIN, str(error)) if is_machine_error(error) else None


def has_source(address: str) -> bool:
    """Return True if this machine has an address from which it can reach `address`; no packet is sent.

    EADDRNOTAVAIL is otherwise no lack of ports: a machine without IPv6 reports it for each IPv6 address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError as error:
        return is_machine_error(error) and error.errno != errno.EADDRNOTAVAIL
    return True
