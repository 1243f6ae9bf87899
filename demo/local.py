"""Run the image server and a private Ray on this machine, isolated from other Ray instances, and submit a job."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo.serve import HOST, PORT
from hypergrit_common.processes import descendants, free_ports, kill

ROOT = Path(__file__).resolve().parent.parent
READY_S = 120.0


def usable_port() -> int:
    """Return the default port if it is free, so that repeated runs use the same URLs; otherwise any free port."""
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, PORT))
        return PORT
    return free_ports(1)[0]


def wait_for_answer(request: urllib.request.Request, process: "subprocess.Popen[bytes]", log: Path, name: str) -> None:
    """Wait until the server in `process` responds.

    Raises RuntimeError with the end of its log if it exits or does not respond within 120 s.
    """
    # A proxy cannot reach the loopback interface of this machine.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        try:
            direct.open(request, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    tail = log.read_text("utf-8", "replace")[-2000:]
    code = process.poll()
    cause = f"no response within {READY_S:.0f} s" if code is None else f"exit code {code}"
    raise RuntimeError(f"{name} did not start: {cause}; end of {log}:\n{tail}")


@contextmanager
def server(port: int, log: Path) -> Iterator[None]:
    """Run demo.serve in a process until the context ends. The context begins when the server responds.

    Raises RuntimeError with the end of the log if the server does not start.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "demo.serve", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_for_answer(urllib.request.Request(f"http://{HOST}:{port}/"), process, log, "the image server")
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


STOP_S = 10.0
OBJECT_STORE_BYTES = 400_000_000


@dataclass(frozen=True, kw_only=True)
class LocalRay:
    """The address of a Ray job server, and the environment variables that its clients need."""

    address: str
    env: dict[str, str]


@contextmanager
def local_ray(n_cpus: int, log: Path) -> Iterator[LocalRay]:
    """Run a Ray head with a job server until the context ends. Its output is written to `log`.

    Raises RuntimeError with the end of the log if Ray does not start.
    """
    # Ray creates Unix sockets below this folder, whose paths are limited to 107 characters, so it must be short.
    home = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp" if os.access("/tmp", os.W_OK) else None))
    head_port, dashboard, agent, client, runtime_env, metrics = free_ports(6)
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    # A random token per run: other users of the host cannot submit jobs.
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    # .rayignore and .gitignore already exclude these folders from the upload; Ray's default list would only warn.
    env["RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES"] = ""
    command = [*ray_command(), "start", "--head", "--block", "--disable-usage-stats"]
    options: dict[str, object] = {
        "num-cpus": n_cpus,
        "node-ip-address": HOST,
        "port": head_port,
        "dashboard-host": HOST,
        "dashboard-port": dashboard,
        "dashboard-agent-listen-port": agent,  # fixed by default, so a second Ray on the host could not run jobs
        "ray-client-server-port": client,
        "runtime-env-agent-port": runtime_env,
        "metrics-export-port": metrics,
        "temp-dir": home / "ray",  # Ray opens it to all, and `home` is private
        "object-store-memory": OBJECT_STORE_BYTES,
    }
    command += [f"--{name}={value}" for name, value in options.items()]
    log.parent.mkdir(parents=True, exist_ok=True)
    head = None
    try:
        with log.open("wb") as out:
            head = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
        ray = LocalRay(address=f"http://{HOST}:{dashboard}", env=env)
        # The job server responds only after its agent is ready to run jobs.
        headers = {"Authorization": f"Bearer {env['RAY_AUTH_TOKEN']}"}
        wait_for_answer(urllib.request.Request(f"{ray.address}/api/jobs/", headers=headers), head, log, "Ray")
        yield ray
    finally:
        with signals_blocked():
            if head:
                stop_with_descendants(head)
            shutil.rmtree(home, ignore_errors=True)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the context ends, so that a second Ctrl-C cannot interrupt the shutdown of Ray."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ray_command() -> list[str]:
    """Return the command of Ray's CLI with this Python, so that the environment need not be activated."""
    return [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]


RAY_LINE: Final = re.compile(rb"\d{4}-\d\d-\d\d [\d:,]+\t(INFO|SUCC) \w+\.py:\d+ -- ")
"""A line of Ray about the submission, such as its next steps: the Ray of the demo ends with the job."""


def submit(ray: LocalRay, root: Path, entrypoint: Sequence[str]) -> int:
    """Run `ray job submit --working-dir ROOT -- ENTRYPOINT` and print its log and errors. Returns the exit code."""
    command = [*ray_command(), "--logging-level", "warning", "job", "submit", "--address", ray.address]
    command += ["--working-dir", str(root), "--log-color", "false", "--", *entrypoint]
    env = {**ray.env, "NO_PROXY": HOST, "no_proxy": HOST}
    with subprocess.Popen(command, env=env, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            for line in process.stdout or ():
                if not RAY_LINE.match(line):
                    print(line.decode("utf-8", "replace"), end="", flush=True)
        except BaseException:
            process.kill()
            raise
    return process.returncode


def stop_with_descendants(head: "subprocess.Popen[bytes]") -> None:
    """Terminate a Ray head and kill its remaining descendants, by process id."""
    processes = descendants(head.pid)
    head.send_signal(signal.SIGTERM)  # `ray start --block` also stops its daemons
    try:
        head.wait(STOP_S)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait()
    kill(processes)
