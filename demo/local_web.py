"""The demo's web server as a process of its own."""

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
    """The demo's own port where it is free, so that a second run has the same addresses; else any free one."""
    for port in (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise RuntimeError(f"no free port on {HOST}")


@contextmanager
def server(port: int, log: Path) -> Iterator[None]:
    """demo.serve as a process, answering, for as long as the context lasts."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "demo.serve", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end = time.monotonic() + READY_S
        while True:
            try:
                direct.open(f"http://{HOST}:{port}/", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.monotonic() > end:
                    tail = log.read_text("utf-8", "replace")[-2000:]
                    raise RuntimeError(f"the image server did not start; the end of {log}:\n{tail}") from None
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
