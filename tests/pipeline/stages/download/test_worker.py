"""The loop that a stage keeps: connections live on, and forks, pickles, interrupts and ends are clean."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.stage import Download
from tests.patience import PATIENCE_S
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb


@pytest.fixture
def web() -> Iterator[TinyWeb]:
    server = TinyWeb()
    yield server
    server.close()


def test_connections_are_used_by_the_next_table(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    create = Download(config())._worker
    monkeypatch.setattr("pipeline.stages.download.fetch.Contact.connected", lambda self: opened.append(self))
    download = Download(config(concurrency=1))
    for _ in range(3):
        assert reasons(download(table(web.url("/size/60x80"), web.url("/size/60x90")))) == [None, None]
    assert len(opened) == 1
    create.close()


def test_a_closed_stage_opens_new_connections(web: TinyWeb) -> None:
    download = Download(config())
    for _ in range(2):
        assert reasons(download(table(web.url("/image/0")))) == [None]
        download.close()
        download.close()


def test_a_stage_can_be_pickled_after_use(web: TinyWeb) -> None:
    download = Download(DownloadConfig(allowed_private_hosts=("127.0.0.1",)))
    first = download(table(web.url("/image/0")))
    assert pickle.loads(pickle.dumps(download))(table(web.url("/image/0"))) == first


def test_a_forked_process_opens_its_own_loop(web: TinyWeb) -> None:
    download = Download(config())
    assert reasons(download(table(web.url("/image/0")))) == [None]
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(reasons(download(table(web.url("/image/1"))))))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert answers.get() == [None]
    assert reasons(download(table(web.url("/image/2")))) == [None]


def test_threads_share_a_stage(web: TinyWeb) -> None:
    download, found = Download(config()), []
    threads = [
        threading.Thread(target=lambda i=i: found.append(reasons(download(table(web.url(f"/image/{i}"))))))  # type: ignore[misc]
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[None]] * 4


SCRIPT = """
import signal, socket, sys, threading, time
from pipeline.images import ResizeConfig
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.stage import Download
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.names import Names

socket.getaddrinfo = Names().getaddrinfo
other = {"client": sys.argv[2], "resize": ResizeConfig(kernel="area")}
download = Download(config(dns_timeout_s=0.3, **other))
urls = ["http://bad0.test/", sys.argv[1] + "/image/0"]
print(reasons(download(table(*urls))))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
try:
    download(table(sys.argv[1] + "/hang"))
except KeyboardInterrupt:
    print("interrupted")
print(reasons(download(table(urls[1]))))
print(time.monotonic())
"""


@pytest.mark.parametrize("client", ["aiohttp", pytest.param("img2dataset", marks=pytest.mark.rest)])
def test_a_process_ends_quietly_and_at_once(web: TinyWeb, client: str) -> None:
    """Also after an interrupt, and while the thread of a look-up still waits for a silent name server (for minutes)."""
    if client != "aiohttp":
        pytest.importorskip(client)
    command = [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", SCRIPT, web.url(""), client]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=True)
    *lines, end_s = done.stdout.splitlines()
    assert time.monotonic() - float(end_s) < PATIENCE_S
    assert lines == ["['dns_error', None]", "interrupted", "[None]"]
    assert "aiohttp" not in done.stderr
    assert "Unclosed" not in done.stderr
    assert "Traceback" not in done.stderr
