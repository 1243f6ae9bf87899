"""Processes whose names are no text."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypergrit_common.processes import descendants, free_ports, start_of, started_at

RENAME = """
with open("/proc/self/comm", "wb") as file:
    file.write(b"\\xff) Z \\xfe")
print(flush=True)
input()
"""


@pytest.fixture
def renamed() -> Iterator[int]:
    """A process whose name is not UTF-8 and contains what separates the name from the state."""
    if not Path("/proc/self/comm").exists():
        pytest.skip("the names of processes are in /proc/PID/comm on Linux only")
    with subprocess.Popen([sys.executable, "-c", RENAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_process_whose_name_is_not_utf_8_is_found(renamed: int) -> None:
    started = descendants(os.getpid())[renamed]
    assert started_at(renamed) == started
    assert start_of(renamed) == int(started)


def test_servers_can_listen_on_free_ports_and_no_connection_gets_them() -> None:
    ports = free_ports(6)
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given.read_text().split()[0]) if given.exists() else 0
    assert len(set(ports)) == 6
    assert max(ports) < first or first < 32_768  # the first port that Linux gives, if nobody has set another
    with socket.create_server(("", ports[0])):
        pass
