"""What the demo starts, it ends; and it minds what others on the host have taken."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from demo.local_ray import descendants, free_ports, started_at, stop
from demo.local_web import server, usable_port
from demo.serve import HOST, PORT


def test_free_ports_are_all_different() -> None:
    assert len(set(free_ports(6))) == 6


def test_another_port_is_taken_when_the_demos_own_is_not_free() -> None:
    with socket.socket() as taken:
        try:
            taken.bind((HOST, PORT))
            taken.listen()
        except OSError:
            pass  # somebody else has it, which serves as well
        assert usable_port() != PORT


def test_server_answers_within_its_context_and_is_gone_after_it(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address = f"http://{HOST}:{port}/"
    with server(port, tmp_path / "server.log"):
        assert urllib.request.urlopen(address, timeout=5).status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)


def test_server_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        with (
            pytest.raises(RuntimeError, match="did not start"),
            server(taken.getsockname()[1], tmp_path / "server.log"),
        ):
            pass


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
def test_stopping_a_process_ends_its_stubborn_children_too() -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()  # the child runs and ignores SIGTERM
    family = descendants(process.pid)
    assert len(family) == 1
    stop(process)
    end = time.monotonic() + 5
    while any(started_at(pid) == at and not is_zombie(pid) for pid, at in family.items()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(started_at(pid) == at and not is_zombie(pid) for pid, at in family.items())


def is_zombie(pid: int) -> bool:
    """Dead, and only waiting for its parent to ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
