"""Processes by id: their memory, their descendants, and ways to end them when this process is killed (Linux)."""

import ctypes
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""Number of the option in linux/prctl.h."""
MARK: Final = "HYPERGRIT_STARTED_BY"
"""Variable of the environment that marks what processes have started: the marks of all of them, with spaces between."""
GRACE_S: Final = 4.0
"""Seconds that the marked programs have to end by themselves."""
SERVERS: Final = range(20_000, 32_768)
"""Ports between those of Ray's workers and those that Linux gives to connections, which any client may get."""


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None if the process (or /proc) does not exist.

    The name of the process, before them, may be any bytes.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def started_at(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot. Id and start time identify a process."""
    fields = stat_fields(pid)
    return fields[19] if fields else None


def free_memory() -> int:
    """Return the bytes of memory that this process can still use, within its container. Raises OSError elsewhere."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    free = {name: int(value) * 1024 for name, value, *_ in lines}["MemAvailable:"]
    with suppress(OSError, ValueError):  # without a limit, it is "max"
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    return max(free, 0)


def n_cpus() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_ports(n: int) -> list[int]:
    """Return `n` different ports of this machine on which servers can listen later. Raises RuntimeError if none is free.

    They are drawn, so that processes that draw at the same time get different ones.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(SERVERS, len(SERVERS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == n:
            return found
    raise RuntimeError(f"fewer than {n} ports of {SERVERS.start} to {SERVERS.stop - 1} are free")


def descendants(root: int) -> dict[int, str]:
    """Return {process id: start time} of all descendants of `root`."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := stat_fields(int(entry.name)):
            children.setdefault(int(fields[1]), []).append((int(entry.name), fields[19]))
    found: dict[int, str] = {}
    pending = [root]
    while pending:
        for pid, started in children.get(pending.pop(), []):
            found[pid] = started
            pending.append(pid)
    return found


def kill(processes: Mapping[int, str]) -> None:
    """Kill the processes {id: start time} that still run; a new process with a reused id is not touched."""
    for pid, started in processes.items():
        if started_at(pid) == started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def status_text(status: int) -> str:
    """Return the signal or the exit code of an exit status.

    >>> status_text(-11), status_text(1)
    ('SIGSEGV', 'exit code 1')
    """
    try:
        return signal.Signals(-status).name if status < 0 else f"exit code {status}"
    except ValueError:  # a real-time signal
        return f"signal {-status}"


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Let Linux send a signal to this process when `parent`, which started it, ends; at once if it has ended already.

    The end of the thread that started this process counts as well. Does nothing on other systems.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def end_children_with_this_process() -> None:
    """Start a guard that kills the programs which this process starts from now on, a few seconds after its end (Linux).

    They are found by a variable of their environment, which compilers inherit and pass on.
    """
    mark = f"{os.getpid()}-{started_at(os.getpid())}"
    marks = os.environ.get(MARK, "").split()
    if mark not in marks:
        unmarked = {name: value for name, value in os.environ.items() if name != MARK}  # no other guard ends this one
        command = [sys.executable, "-I", __file__, mark]
        _guards.append(subprocess.Popen(command, start_new_session=True, env=unmarked))
        os.environ[MARK] = " ".join([*marks, mark])


def _guard(mark: str) -> None:
    parent = os.getppid()
    while os.getppid() == parent and mark.startswith(f"{parent}-"):
        time.sleep(1)
    time.sleep(GRACE_S)
    name = f"{MARK}=".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(mark.encode() in item.removeprefix(name).split() for item in variables if item.startswith(name)):
                os.kill(int(entry.name), signal.SIGKILL)


def clean_up_after_this_process(processes: Mapping[int, str], folder: str) -> None:
    """Start a guard that kills these processes and removes `folder` when this one ends, however it ends."""
    names = [folder, *(f"{pid}:{started}" for pid, started in processes.items())]
    # The guard waits for the end of its input, which this process holds open and never writes to. It is the leader of a
    # session of its own, so that Ctrl-C and the signals of a terminal do not reach it.
    guard = subprocess.Popen([sys.executable, "-I", __file__, *names], stdin=subprocess.PIPE, start_new_session=True)
    _guards.append(guard)


_guards: "list[subprocess.Popen[bytes]]" = []
"""The guards of this process; a Popen that is collected would close the guard's input."""


# The identity of a process, by which other processes can tell whether it still runs.

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


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _guard(sys.argv[1])
        sys.exit()
    sys.stdin.read()
    kill({int(pid): started for pid, _, started in (name.partition(":") for name in sys.argv[2:])})
    shutil.rmtree(sys.argv[1], ignore_errors=True)
