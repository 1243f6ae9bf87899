"""A lack of open files, memory, threads or ports costs no row: rows wait for its end, or the shard fails."""

import _thread
import asyncio
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
from pipeline.stages.download import client, stage
from pipeline.stages.download import hosts as open_files
from pipeline.stages.download import hosts as shortage
from pipeline.stages.download.addresses import FetchError
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.hosts import Pulse, Shares, Shortage, has_source, lacks_files, share_files
from pipeline.stages.download.resolver import NameLookupError, Resolver
from pipeline.stages.download.stage import Download
from tests.pipeline.stages.download.names import Names
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb

NO_FILES = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
NO_ADDRESS = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortage, "PAUSE_S", 0.01)
    monkeypatch.setattr(shortage, "MAX_PAUSE_S", 0.1)


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
        expected = open_files.MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, open_files.MOST_FILES)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == expected


def test_requests_and_look_ups_share_the_open_files() -> None:
    assert share_files(DownloadConfig(), 20_000) == Shares(requests=64, idle=512, lookups=1024)
    for n_free in (0, 10, 40, 100, 1000, 4000):
        shares = share_files(DownloadConfig(), n_free)
        assert shares.requests >= 1
        assert shares.lookups >= 1
        assert 2 * shares.requests + shares.idle + 3 * shares.lookups <= max(n_free, 5)


def test_silent_names_leave_files_to_the_others(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "MOST_FILES", 16)
    names = NamesWithFiles()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    monkeypatch.setattr(names.released, "wait", lambda _: time.sleep(0.5))
    silent = [f"http://bad{i}.test:{web.port}/image/0" for i in range(60)]
    good = [f"http://ok{i}.test:{web.port}/image/{i}" for i in range(60)]
    with open_files_limited_to(150):
        found = reasons(Download(config())(table(*(url for pair in zip(silent, good, strict=True) for url in pair))))
    assert found == ["dns_error", None] * 60


@pytest.mark.parametrize(
    "error",
    [
        NO_FILES,
        OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
        OSError(errno.EINVAL, os.strerror(errno.EINVAL)),
        OSError(errno.EBUSY, os.strerror(errno.EBUSY)),
        socket.gaierror(socket.EAI_MEMORY, "Memory allocation failure"),
        MemoryError(),
    ],
    ids=repr,
)
def test_a_look_up_that_lacked_something_is_asked_again(
    web: TinyWeb, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    names = FailingNames(error, error, error)
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    assert reasons(Download(config())(table(f"http://ok0.test:{web.port}/image/0"))) == [None]


def test_an_unknown_name_is_asked_again_if_files_were_lacking_meanwhile(
    web: TinyWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = FailingNames(NO_ADDRESS)
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    answers = iter([True, False])
    monkeypatch.setattr(shortage, "lacks_files", lambda: next(answers, False))
    assert reasons(Download(config())(table(f"http://ok0.test:{web.port}/image/0"))) == [None]
    with open_files_limited_to(2):
        assert lacks_files()
    assert not lacks_files()


def test_a_lack_of_threads_for_look_ups_costs_no_row(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names().getaddrinfo)
    start, n_failures = _thread.start_new_thread, iter(range(3))

    def fail(*arguments: Any) -> int:
        if next(n_failures, None) is not None:
            raise RuntimeError("can't start new thread")
        return start(*arguments)

    monkeypatch.setattr(_thread, "start_new_thread", fail)
    assert reasons(Download(config())(table(f"http://ok0.test:{web.port}/image/0"))) == [None]


def test_a_lack_of_threads_for_decoding_costs_no_row(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    start, n_failures = threading.Thread.start, iter(range(2))

    def fail(thread: threading.Thread) -> None:
        if thread.name.startswith("decode") and next(n_failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    monkeypatch.setattr(stage, "PAUSE_S", 0.01)
    assert reasons(Download(config())(table(web.url("/image/0")))) == [None]


@pytest.mark.parametrize("error", [NO_FILES, OSError(errno.EINVAL, "Invalid argument")], ids=repr)
def test_look_ups_that_always_lack_files_end_the_shard(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(shortage, "PATIENCE_S", 0.2)
    names = FailingNames(*[error] * 1000)
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    download = Download(config())
    with pytest.raises(OSError, match="ulimit -n"):
        run_isolated("download", download.isolate, table("http://ok0.test/1", "http://ok1.test/1"))


def test_a_name_that_alone_is_invalid_costs_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortage, "PATIENCE_S", 0.2)
    names = Names(failure=OSError(errno.EINVAL, "Invalid argument"))
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)

    async def run() -> None:
        found = Resolver(frozenset(), 8, 5.0, 8, Shortage(asyncio.get_running_loop().time), Pulse())
        asking = asyncio.create_task(found.lookup("bad0.test"))
        for i in range(40):
            assert await found.lookup(f"ok{i}.test") == ("127.0.0.1",)
            await asyncio.sleep(0.01)
        with pytest.raises(NameLookupError, match="Invalid argument"):
            await asking

    asyncio.run(run())


def test_connections_that_always_lack_files_end_the_shard(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortage, "PATIENCE_S", 0.5)

    async def connect(**_: Any) -> socket.socket:
        raise NO_FILES

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", connect)
    download = Download(config(deadline_s=0.2))
    with pytest.raises(OSError, match="Too many open files in the download"):
        run_isolated("download", download.isolate, table(*(web.url(f"/image/{i}") for i in range(8))))


def test_a_worker_without_any_open_file_drops_no_rows(web: TinyWeb) -> None:
    download = Download(config())
    urls = [web.url(f"/image/{i}") for i in range(4)]
    with open_files_limited_to(0), pytest.raises(OSError, match="Too many open files"):
        run_isolated("download", download.isolate, table(*urls))
    assert reasons(download(table(*urls))) == [None] * 4


def test_a_lack_that_ends_after_the_time_of_a_row_costs_no_row(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, end_s = client.attempt_fetch, time.monotonic() + 3.0

    async def fail(*arguments: Any) -> Any:
        if time.monotonic() < end_s:
            raise FetchError("connection_error", "EMFILE", is_transient=True, lack=NO_FILES)
        return await fetch(*arguments)

    monkeypatch.setattr(client, "attempt_fetch", fail)
    download = Download(config(deadline_s=2.5, retries=0))
    assert reasons(download(table(*(web.url(f"/image/0?{i}") for i in range(8))))) == [None] * 8


@pytest.mark.parametrize("has_route", [False, True])
def test_an_address_without_route_costs_its_row_and_a_lack_of_ports_the_shard(
    monkeypatch: pytest.MonkeyPatch, has_route: bool
) -> None:
    """A machine without IPv6 reports EADDRNOTAVAIL for the IPv6 address of a row."""
    monkeypatch.setattr(shortage, "PATIENCE_S", 0.1)
    monkeypatch.setattr(client, "has_source", lambda _: has_route)

    async def fail(*_: Any) -> bytes:
        raise FetchError(
            "connection_error", "EADDRNOTAVAIL", is_transient=True, lack=OSError(errno.EADDRNOTAVAIL, "no")
        )

    monkeypatch.setattr(client, "attempt_fetch", fail)
    download = Download(config(retries=1))
    if has_route:
        with pytest.raises(OSError, match="in the download"):
            download(table("http://127.0.0.1/1"))
    else:
        assert reasons(download(table("http://127.0.0.1/1"))) == ["connection_error"]


def test_loopback_has_a_source() -> None:
    assert has_source("127.0.0.1")
