"""Tests of the demo's subprocesses and ports."""

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from demo import local
from demo.local import server, stop_with_descendants, usable_port
from demo.serve import HOST, PORT
from hypergrit_common.processes import descendants, free_ports, started_at
from tests.patience import PATIENCE_S, wait_until


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
        assert urllib.request.urlopen(address, timeout=PATIENCE_S).status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=PATIENCE_S)


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
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()  # the child runs and ignores SIGTERM
    processes = descendants(process.pid)
    assert len(processes) == 1
    stop_with_descendants(process)
    wait_until(lambda: not any(started_at(pid) == at and not is_zombie(pid) for pid, at in processes.items()))


def is_zombie(pid: int) -> bool:
    """True if the process has exited, even if its parent has not yet collected its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_submitting_a_job_prints_its_log_and_rays_errors_without_rays_next_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "2026-11-26 04:19:08,843\tINFO cli.py:330 -- Next steps",
        "2026-11-26 04:19:08,843\tSUCC cli.py:67 -- Job 'raysubmit_1' submitted successfully",
        "04:19:10 INFO 240 rows in 5 shards",
        "2026-11-26 04:19:53,044\tINFO sdk.py:520 -- WebSocket closed for job raysubmit_1 with close code 1000",
        "2026-11-26 04:19:54,000\tERR cli.py:68 -- Job 'raysubmit_1' failed",
    ]
    code = f"import sys; print({chr(10).join(lines)!r}); sys.exit(3)"
    monkeypatch.setattr(local, "ray_command", lambda: [sys.executable, "-c", code])
    assert local.submit(local.LocalRay(address="http://127.0.0.1:1", env={}), tmp_path, ["job"]) == 3
    assert capsys.readouterr().out.splitlines() == [lines[2], lines[4]]
