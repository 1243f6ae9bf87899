"""The open files of a worker: its limit, and the shares of connections and look-ups in it."""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pipeline.download.config import DownloadConfig

MOST_FILES: Final = 65_536
"""Open files up to which the soft limit is raised; the hard limit of some systems is a billion."""
RESERVED: Final = 32
"""Files for everything else that this process opens meanwhile: decoders, the files of a shard, the permits."""

CONNECTION_FILES: Final = 2
"""A connection is attempted to two addresses of its host at a time."""
LOOKUP_FILES: Final = 3
"""The C library opens a socket for each name server that does not answer; it knows at most three."""
SLOW_FACTOR: Final = 8
"""Look-ups that may run at a time, as a multiple of `dns_concurrency`: most of them are slow."""
IDLE_FACTOR: Final = 8
"""Idle connections that are kept, as a multiple of `concurrency`."""


@dataclass(frozen=True)
class Shares:
    """The numbers of requests, idle connections and look-ups of names that a worker may have at a time."""

    requests: int
    idle: int
    lookups: int


def raise_file_limit() -> int:
    """Raise the soft limit for the open files of this process as far as it may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < wanted:
        with suppress(OSError, ValueError):  # some systems have a limit besides the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def count_open_files() -> int:
    """Count the open files of this process; RESERVED where the system does not tell."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return RESERVED


def share_files(config: DownloadConfig, n_free: int) -> Shares:
    """Divide `n_free` open files: a quarter each to requests and idle connections at most, the rest to look-ups.

    >>> share_files(DownloadConfig(), 20_000)
    Shares(requests=64, idle=512, lookups=1024)
    >>> share_files(DownloadConfig(), 900)
    Shares(requests=64, idle=225, lookups=182)
    """
    n_free = max(n_free - RESERVED, 0)
    requests = min(config.concurrency, max(1, n_free // 4 // CONNECTION_FILES))
    idle = min(IDLE_FACTOR * config.concurrency, n_free // 4)
    rest = (n_free - CONNECTION_FILES * requests - idle) // LOOKUP_FILES
    return Shares(requests, idle, min(SLOW_FACTOR * config.dns_concurrency, max(1, rest)))


def lacks_files() -> bool:
    """Return True if this process cannot open four more files: a call that needs some may have failed for it."""
    opened: list[int] = []
    try:
        for _ in range(2):
            opened += os.pipe()
    except OSError:
        return True
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False
