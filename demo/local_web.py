"""Run the demo's web server in a separate process."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.serve import HOST, PORT

ROOT = Path(__file__).resolve().parent.parent
READY_S = 120.0


def usable_port() -> int:
    """Return the default port if it is free, so that repeated runs use the same URLs; otherwise any free port.

    Raises RuntimeError if no port is free.
    """
    for port in (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise RuntimeError(f"no free port on {HOST}")


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
