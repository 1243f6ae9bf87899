"""The identity of a process, by which other processes can tell whether it still runs."""

import hashlib
import os
import re
import socket
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from hypergrit_common.processes import stat_fields

PATTERN: Final = re.compile(r"([0-9a-f]{8})-(\d+)-(\d+)")


@dataclass(frozen=True)
class ProcessId:
    """A process of a machine. `str` gives a form that fits into a file name; `parse` reads it."""

    machine: str  # hash of the host name, the boot, and the namespace of process numbers (a container has its own)
    pid: int
    start: int  # start of the process in clock ticks since the boot, since numbers are used again; 0 if unknown

    def __str__(self) -> str:
        return f"{self.machine}-{self.pid}-{self.start}"

    @staticmethod
    def parse(text: str) -> "ProcessId | None":
        """Return the identity that `text` holds; None if it has another form."""
        found = PATTERN.fullmatch(text)
        return ProcessId(found[1], int(found[2]), int(found[3])) if found else None

    def is_alive(self) -> bool | None:
        """Return whether the process runs; None if it belongs to another machine, which cannot be seen from here."""
        if self.machine != machine():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # a process of another user
            pass
        start = start_of(self.pid)
        return start is not None and self.start in (0, start)


def this_process() -> ProcessId:
    """Return the identity of this process."""
    return ProcessId(machine(), os.getpid(), start_of(os.getpid()) or 0)


@cache
def machine() -> str:
    """Return eight hex digits that differ between machines, boots and containers."""
    parts = [socket.gethostname()]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    except OSError:  # not Linux
        parts.append(str(uuid.getnode()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def start_of(pid: int) -> int | None:
    """Return the start time of a process; None if it has ended, 0 if the system does not tell."""
    fields = stat_fields(pid)
    if fields is None:
        return None if Path("/proc/self/stat").exists() else 0
    return None if fields[0] in "ZX" else int(fields[19])
