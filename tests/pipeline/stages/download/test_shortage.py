"""A lack of open files, memory or threads costs no row: an attempt is made again, or the shard fails."""

import _thread
import errno
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import aiohappyeyeballs
import pytest

from pipeline.faults import run_isolated
from pipeline.stages.download import hosts, resolver, stage
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.hosts import Shares, share_files
from pipeline.stages.download.stage import Download
from tests.pipeline.stages.download.names import Names
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb

NO_FILES = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "RETRY_PAUSE_S", 0.01)


@contextmanager
def open_files_limited_to(n_more: int) -> Iterator[None]:
    """A soft limit of `n_more` files beyond those that are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 1 + n_more, hard))
    fillers: list[int] = []
    try:
        with suppress(OSError):
            while True:  # the numbers of open files have gaps
                fillers.append(os.dup(2))
        for _ in range(n_more):
            os.close(fillers.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


class FailingNames(Names):
    """Each look-up raises the next of `errors`, or behaves like Names."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def getaddrinfo(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if str(host).endswith(".test") and self.errors:
            raise self.errors.pop(0)
        return super().getaddrinfo(host, port, *args, **options)


class NamesWithFiles(Names):
    """Each look-up holds three files, as the C library does, and reports a lack of them as it does."""

    def getaddrinfo(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        sockets: list[socket.socket] = []
        try:
            sockets += [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
            return super().getaddrinfo(host, port, *args, **options)
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None
            raise
        finally:
            for found in sockets:
                found.close()


def test_the_soft_limit_for_open_files_is_raised(web: TinyWeb) -> None:
    with open_files_limited_to(100):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert reasons(Download(config())(table(web.url("/image/0")))) == [None]
        expected = hosts.MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, hosts.MOST_FILES)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == expected


def test_requests_and_look_ups_share_the_open_files() -> None:
    assert share_files(DownloadConfig(), 20_000) == Shares(requests=64, idle=512, lookups=1024)
    for n_free in (0, 10, 40, 100, 1000, 4000):
        shares = share_files(DownloadConfig(), n_free)
        assert shares.requests >= 1
        assert shares.lookups >= 1
        assert 2 * shares.requests + shares.idle + 3 * shares.lookups <= max(n_free, 5)


def test_silent_names_leave_files_to_the_others(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "MOST_FILES", 16)
    names = NamesWithFiles()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    monkeypatch.setattr(names.released, "wait", lambda _: time.sleep(0.2))
    silent = [f"http://bad{i}.test:{web.port}/image/0" for i in range(30)]
    good = [f"http://ok{i}.test:{web.port}/image/0?{i}" for i in range(30)]
    with open_files_limited_to(150):
        found = reasons(Download(config())(table(*(url for pair in zip(silent, good, strict=True) for url in pair))))
    assert found == ["dns_error", None] * 30


@pytest.mark.parametrize(
    "error",
    [
        NO_FILES,
        OSError(errno.EINVAL, os.strerror(errno.EINVAL)),
        socket.gaierror(socket.EAI_MEMORY, "Memory allocation failure"),
        MemoryError(),
    ],
    ids=repr,
)
def test_a_look_up_that_lacked_something_is_asked_again(
    web: TinyWeb, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", FailingNames(error).getaddrinfo)
    assert reasons(Download(config())(table(f"http://ok0.test:{web.port}/image/0"))) == [None]


def test_a_lack_of_threads_costs_no_row(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for look-ups nor for decoding."""
    monkeypatch.setattr(socket, "getaddrinfo", Names().getaddrinfo)
    monkeypatch.setattr(stage, "PAUSE_S", 0.01)
    begin, start, failures = _thread.start_new_thread, threading.Thread.start, ["look-up", "decode"]

    def begin_look_up(*arguments: Any) -> int:
        if "look-up" in failures:
            failures.remove("look-up")
            raise RuntimeError("can't start new thread")
        return begin(*arguments)

    def start_thread(thread: threading.Thread) -> None:
        if thread.name.startswith("decode") and "decode" in failures:
            failures.remove("decode")
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(_thread, "start_new_thread", begin_look_up)
    monkeypatch.setattr(threading.Thread, "start", start_thread)
    assert reasons(Download(config())(table(f"http://ok0.test:{web.port}/image/0"))) == [None]
    assert failures == []


def test_look_ups_that_always_lack_files_end_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", FailingNames(*[NO_FILES] * 100).getaddrinfo)
    download = Download(config())
    with pytest.raises(OSError, match="ulimit -n"):
        run_isolated("download", download.isolate, table("http://ok0.test/1", "http://ok1.test/1"))


@pytest.mark.parametrize("error", [NO_FILES, OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))], ids=repr)
def test_connections_that_always_lack_files_end_the_shard_and_an_address_without_route_its_row(
    web: TinyWeb, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """A machine without IPv6 reports EADDRNOTAVAIL for the IPv6 address of a row."""

    async def connect(**_: Any) -> socket.socket:
        raise error

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", connect)
    download, urls = Download(config(backoff_s=0.01)), [web.url(f"/image/{i}") for i in range(8)]
    if error is NO_FILES:
        with pytest.raises(OSError, match="Too many open files in the download"):
            run_isolated("download", download.isolate, table(*urls))
    else:
        assert reasons(download(table(*urls))) == ["connection_error"] * 8


def test_a_worker_without_any_open_file_drops_no_rows(web: TinyWeb) -> None:
    download = Download(config())
    urls = [web.url(f"/image/0?{i}") for i in range(4)]
    with open_files_limited_to(0), pytest.raises(OSError, match="Too many open files"):
        run_isolated("download", download.isolate, table(*urls))
    assert reasons(download(table(*urls))) == [None] * 4


def test_a_connection_that_lacked_a_file_is_opened_again(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    start, lacks = aiohappyeyeballs.start_connection, [NO_FILES] * 8

    async def connect(*args: Any, **options: Any) -> socket.socket:
        if lacks:
            raise lacks.pop()
        return await start(*args, **options)

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", connect)
    found = Download(config(backoff_s=0.01))(table(*(web.url(f"/image/0?{i}") for i in range(8))))
    assert reasons(found) == [None] * 8
