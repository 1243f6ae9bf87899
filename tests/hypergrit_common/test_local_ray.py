"""A Ray that we start: no other machine can connect, its processes end with the driver, SIGTERM ends it cleanly."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray._private import ray_logging

from hypergrit_common.errors import UserError
from hypergrit_common.local_ray import divert_worker_lines, init_ray
from hypergrit_common.processes import descendants, started_at, stat_fields
from tests.patience import PATIENCE_S, wait_until

PROGRAM = """
import os, sys, time
from pathlib import Path
import ray
from hypergrit_common.cli import command, set_up_logging
from hypergrit_common.local_ray import init_ray

@command("all is kept")
def main():
    set_up_logging()
    init_ray("local", num_cpus=1)
    try:
        assert ray.get(ray.remote(lambda: 7).remote()) == 7
        ray.get(ray.remote(lambda: print("said by a worker", file=sys.stderr)).remote())
        time.sleep(1)  # until Ray has forwarded the line
        print("ready", ray._private.worker._global_node.get_temp_dir_path(), flush=True)
        ray.wait([ray.remote(lambda: time.sleep(60)).remote()])
    finally:
        ray.shutdown()
    return 0

sys.exit(main())
"""


def test_a_ray_that_does_not_start_in_time_is_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hg"

    def init(**_: object) -> None:
        raise Exception("The current node timed out\nduring startup")  # as Ray does

    folder.mkdir()
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: str(folder))
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        UserError, match="Ray cannot start on this machine: The current node timed out during startup; if"
    ):
        init_ray("local")
    assert not folder.exists()


def is_running(pid: int, started: str) -> bool:
    fields = stat_fields(pid)
    return started_at(pid) == started and fields is not None and fields[0] != "Z"


def listening(pids: set[int]) -> set[str]:
    """The local addresses, in hexadecimal, of the listening sockets of some processes."""
    inodes = set()
    for pid in pids:
        try:
            links = [link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.rest
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc on this system")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ray_listens_on_loopback_and_ends_with_its_driver(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            ready, name = driver.stdout.readline().split()
            assert ready == "ready"
            folder = Path(name).parent
            assert folder.stat().st_mode & 0o777 == 0o700
            assert folder.name.startswith("hg-")
            processes = descendants(driver.pid)
            assert len(processes) >= 5
            addresses = listening({driver.pid, *processes})
            # 127.0.0.1, and the same mapped to IPv6
            assert addresses == {"0100007F", "0000000000000000FFFF00000100007F"}
            driver.send_signal(number)
            _, errors = driver.communicate(timeout=PATIENCE_S)
        finally:
            driver.kill()
    if number == signal.SIGTERM:
        assert driver.returncode == 143
        assert "terminated: all is kept\n" in errors
        assert "said by a worker" in errors
        assert "\x1b[" not in errors
        assert "Token authentication" not in errors
        assert "***" not in errors
        assert "Traceback" not in errors
    wait_until(lambda: not any(is_running(*process) for process in processes.items()))
    wait_until(lambda: not folder.exists())


IDLE_PROGRAM = """
import os, time
import ray
from hypergrit_common.local_ray import init_ray

init_ray("local", num_cpus=1)

@ray.remote(num_cpus=0.5)
class Half:
    def pid(self):
        return os.getpid()

half = Half.remote()  # leaves no free CPU for an idle worker
ray.get(half.pid.remote())
get_pid = ray.remote(num_cpus=0.5)(lambda: os.getpid())
first = ray.get(get_pid.remote())
time.sleep(4)  # Ray looks for idle workers five times a second, and ends them after one
print(first == ray.get(get_pid.remote()))
ray.shutdown()
"""


@pytest.mark.rest
@pytest.mark.ray
@pytest.mark.slow
def test_an_idle_worker_is_kept_while_actors_use_parts_of_cpus() -> None:
    found = subprocess.run([sys.executable, "-c", IDLE_PROGRAM], capture_output=True, text=True, timeout=120)
    assert found.stdout.splitlines()[-1:] == ["True"], found.stderr


def test_lines_of_workers_go_to_a_file_in_place_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dispatcher = ray_logging.global_worker_stdstream_dispatcher
    dispatcher.add_handler("ray_print_logs", lambda batch: print(batch["lines"]))
    try:
        path = Path(divert_worker_lines())
        batch = {
            "pid": 7,
            "ip": "127.0.0.1",
            "actor_name": None,
            "task_name": "prepare",
            "lines": ["first", "sec\udc80"],
        }
        dispatcher.emit(batch)
    finally:
        dispatcher.remove_handler("ray_print_logs")
    assert path.parent == tmp_path
    assert path.read_text(encoding="utf-8").splitlines()[0] == "(prepare pid=7, ip=127.0.0.1) first"
    assert path.stat().st_mode & 0o077 == 0
    assert not any(capsys.readouterr())
