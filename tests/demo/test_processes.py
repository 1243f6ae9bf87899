"""Tests of the demo's subprocesses and ports."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from demo.local import free_ports, server, stop_with_descendants, usable_port
from demo.serve import HOST, PORT
from hypergrit_common.processes import descendants, started_at


def test_free_ports_are_all_different() -> None:
    assert len(set(free_ports(6))) == 6


def test_another_port_is_used_if_the_default_port_is_taken() -> None:
    with socket.socket() as taken:
        try:
            taken.bind((HOST, PORT))
            taken.listen()
        except OSError:
            pass  # already in use by another process, which has the same effect
        assert usable_port() != PORT


def test_server_responds_within_its_context_and_stops_after_it(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address = f"http://{HOST}:{port}/"
    with server(port, tmp_path / "server.log"):
        assert urllib.request.urlopen(address, timeout=5).status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)


def test_server_that_fails_to_start_raises_an_error_with_its_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        with (
            pytest.raises(RuntimeError, match="did not start"),
            server(taken.getsockname()[1], tmp_path / "server.log"),
        ):
            pass


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
def test_stopping_a_process_kills_children_that_ignore_sigterm() -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()  # the child runs and ignores SIGTERM
    processes = descendants(process.pid)
    assert len(processes) == 1
    stop_with_descendants(process)
    end = time.monotonic() + 5
    while any(started_at(pid) == at and not is_zombie(pid) for pid, at in processes.items()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(started_at(pid) == at and not is_zombie(pid) for pid, at in processes.items())


def is_zombie(pid: int) -> bool:
    """True if the process has exited, even if its parent has not yet collected its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
