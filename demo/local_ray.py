"""A Ray of our own on this machine, and a job submitted to it; nothing of another Ray on the same host is touched."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from demo.local_web import wait_for_answer

HOST = "127.0.0.1"
STOP_S = 10.0
OBJECT_STORE_BYTES = 400_000_000


@dataclass(frozen=True, kw_only=True)
class LocalRay:
    """Where a Ray listens for jobs, and the environment its clients need."""

    address: str
    env: dict[str, str]


def free_ports(n: int) -> list[int]:
    """`n` ports that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def local_ray(n_cpus: int, log: Path) -> Iterator[LocalRay]:
    """A Ray head with its job server, for as long as the context lasts; its own output goes to `log`.

    Raises RuntimeError with the end of that log when it does not come up.
    """
    # A short path: Ray keeps Unix sockets below it, and their names may have 107 characters.
    home = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp" if os.access("/tmp", os.W_OK) else None))
    head_port, dashboard, agent, client, runtime_env, metrics = free_ports(6)
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    # Ray asks for a token by default. This one lives as long as this Ray; nobody else on the host can submit jobs.
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    # .rayignore and .gitignore name what is not uploaded; Ray's own list would warn of the same folders.
    env["RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES"] = ""
    command = [*ray_command(), "start", "--head", "--block", "--disable-usage-stats"]
    options: dict[str, object] = {
        "num-cpus": n_cpus,
        "node-ip-address": HOST,
        "port": head_port,
        "dashboard-host": HOST,
        "dashboard-port": dashboard,
        "dashboard-agent-listen-port": agent,  # fixed by default, so a second Ray on the host could not take jobs
        "ray-client-server-port": client,
        "runtime-env-agent-port": runtime_env,
        "metrics-export-port": metrics,
        "temp-dir": home,
        "object-store-memory": OBJECT_STORE_BYTES,
    }
    command += [f"--{name}={value}" for name, value in options.items()]
    log.parent.mkdir(parents=True, exist_ok=True)
    head = None
    try:
        with log.open("wb") as out:
            head = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
        ray = LocalRay(address=f"http://{HOST}:{dashboard}", env=env)
        # The job server answers once it has an agent to run jobs.
        headers = {"Authorization": f"Bearer {env['RAY_AUTH_TOKEN']}"}
        wait_for_answer(urllib.request.Request(f"{ray.address}/api/jobs/", headers=headers), head, log, "Ray")
        yield ray
    finally:
        with undisturbed():
            if head:
                stop(head)
            shutil.rmtree(home, ignore_errors=True)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the context ends: an impatient second one must not leave half a Ray behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ray_command() -> list[str]:
    """Ray's command line by this very Python, whether or not the environment is activated."""
    return [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]


def submit(ray: LocalRay, root: Path, entrypoint: Sequence[str]) -> int:
    """`ray job submit --working-dir ROOT -- ENTRYPOINT`, its log on our output; returns the command's exit code."""
    command = [
        *ray_command(),
        "--logging-level",
        "warning",
        "job",
        "submit",
        "--address",
        ray.address,
        "--working-dir",
        str(root),
    ]
    command += ["--log-color", "false", "--", *entrypoint]
    env = {**ray.env, "NO_PROXY": HOST, "no_proxy": HOST}
    return subprocess.run(command, env=env, cwd=root, check=False).returncode


def stop(head: "subprocess.Popen[bytes]") -> None:
    """End a Ray head and every process that descends from it, by their ids."""
    family = descendants(head.pid)
    head.send_signal(signal.SIGTERM)  # `ray start --block` takes its daemons along
    try:
        head.wait(STOP_S)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait()
    for pid, started in family.items():
        if started_at(pid) == started:  # still there, and not another process under its number
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on, None where there is no such process (or no /proc)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def started_at(pid: int) -> str | None:
    """When a process began, in clock ticks since boot: with its number, its identity."""
    fields = stat_fields(pid)
    return fields[19] if fields else None


def descendants(root: int) -> dict[int, str]:
    """Process id -> start time of everything below `root`."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := stat_fields(int(entry.name)):
            children.setdefault(int(fields[1]), []).append((int(entry.name), fields[19]))
    found: dict[int, str] = {}
    todo = [root]
    while todo:
        for pid, started in children.get(todo.pop(), []):
            found[pid] = started
            todo.append(pid)
    return found
