"""Hosts that drop packets, accept and say nothing, or refuse: they cost little, and only their own rows."""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from yarl import URL

from hypergrit_common.processes import free_ports
from pipeline.stages.download import hosts
from pipeline.stages.download.fetch import Deadline, Request
from pipeline.stages.download.hosts import Host, HostDeadError
from pipeline.stages.download.stage import Download, by_host
from tests.patience import PATIENCE_S
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb, jpeg

SHORT: dict[str, Any] = {"connect_timeout_s": 1.0}


@pytest.fixture
def black_hole() -> Iterator[int]:
    """The port of a listener whose queue is full: the kernel drops all packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        time.sleep(0.05)
        yield port
        for filler in fillers:
            filler.close()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        yield listener


def interleave(bad: list[str], good: list[str]) -> list[str]:
    return [url for pair in zip(bad, good, strict=True) for url in pair]


def test_a_black_hole_costs_one_time_out(web: TinyWeb, black_hole: int) -> None:
    bad = [f"http://127.0.0.1:{black_hole}/{i}" for i in range(100)]
    good = [web.url(f"/image/{i}") for i in range(100)]
    found = Download(config(concurrency=8, **SHORT))(table(*interleave(bad, good)))
    assert reasons(found) == ["timeout", None] * 100
    details = Counter(found["detail"].to_pylist()[::2])
    assert details.keys() == {"no connection in 1 s", "host given up after 4 attempts without an answer"}
    assert details["no connection in 1 s"] < 50  # without memory all 100


def test_a_silent_host_costs_one_time_out(web: TinyWeb, silent: socket.socket) -> None:
    bad = [f"http://127.0.0.1:{silent.getsockname()[1]}/{i}" for i in range(100)]
    good = [web.url(f"/image/{i}") for i in range(100)]
    found = Download(config(concurrency=32, connect_timeout_s=1.0, timeout_s=3.0))(table(*interleave(bad, good)))
    assert reasons(found) == ["timeout", None] * 100
    silent.setblocking(False)
    n_connections = 0
    with suppress(BlockingIOError):
        while True:
            silent.accept()[0].close()
            n_connections += 1
    assert n_connections < 50


def test_a_dead_host_is_remembered_by_the_next_table(web: TinyWeb, black_hole: int) -> None:
    download = Download(config(**SHORT))
    bad = [f"http://127.0.0.1:{black_hole}/{i}" for i in range(20)]
    good = [web.url(f"/image/0?{i}") for i in range(20)]
    given_up = "host given up after 4 attempts without an answer"
    assert reasons(download(table(*bad, *good))) == ["timeout"] * 20 + [None] * 20
    found = download(table(*bad, *good[1:]))
    assert set(found["detail"].to_pylist()[:20]) == {given_up}
    # Most rows of that table got no answer: this machine may have lost its network, so that the next one asks again.
    found = download(table(*bad, *good))
    assert found["detail"].to_pylist().count("no connection in 1 s") >= 4
    assert reasons(found) == ["timeout"] * 20 + [None] * 20


def test_rows_of_another_port_of_a_dead_host_are_kept(web: TinyWeb, black_hole: int) -> None:
    bad = [f"http://127.0.0.1:{black_hole}/{i}" for i in range(10)]
    redirect = web.url(f"/to?url=http://127.0.0.1:{black_hole}/x")
    assert reasons(Download(config(**SHORT))(table(*bad, redirect, web.url("/image/0")))) == ["timeout"] * 11 + [None]


def test_a_server_that_refuses_while_it_restarts_keeps_its_rows() -> None:
    """Refusals come fast: many of them within `connect_timeout_s` do not make a host dead."""
    (port,) = free_ports(1)
    image = jpeg()

    def serve_later() -> None:
        time.sleep(0.3)
        with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
            listener.settimeout(10)
            for _ in range(20):
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    return
                with connection:
                    connection.recv(4096)
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(image)}\r\nConnection: close\r\n\r\n"
                    connection.sendall(head.encode() + image)

    thread = threading.Thread(target=serve_later)
    thread.start()
    urls = [f"http://127.0.0.1:{port}/{i}" for i in range(20)]
    found = reasons(Download(config(backoff_s=0.5))(table(*urls)))
    thread.join()
    assert found == [None] * 20


def test_a_retry_holds_no_connection(web: TinyWeb) -> None:
    """With one connection, rows that wait for Retry-After leave it to the others."""
    waiting = [web.url(f"/wait/1?{i}") for i in range(1)]
    found = Download(config(concurrency=1))(table(*waiting, *[web.url(f"/image/{3 * i}") for i in range(30)]))
    assert reasons(found) == [None] * 31
    first, second = (place for place, path in enumerate(web.paths) if path == "/wait/1")
    assert second > first + 1


def test_many_rows_wait_for_retry_after_at_the_same_time(web: TinyWeb) -> None:
    with_retry = [web.url(f"/status/503?{i}") for i in range(500)]
    start = time.monotonic()
    found = Download(config(concurrency=1, backoff_s=1.0, retries=1))(table(*with_retry))
    assert reasons(found) == ["http_error"] * 500
    assert time.monotonic() - start < PATIENCE_S  # one after the other: 500 s


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_dead_host_gets_a_probe_each_minute_and_recovers() -> None:
    clock = Clock()
    host = Host(max_failures=3, patience_s=5.0, clock=clock)

    async def run() -> None:
        for _ in range(3):
            await host.enter()
            host.failed(clock.now, "timeout")
            host.leave()
        assert not host.is_dead  # three failures in no time
        await host.enter()
        clock.now = 5.0
        host.failed(0.0, "timeout")
        host.leave()
        assert host.is_dead
        with pytest.raises(HostDeadError, match="4 attempts"):
            await host.enter()
        clock.now += hosts.DEAD_S
        await host.enter()
        host.start()  # the probe
        with pytest.raises(HostDeadError):
            await host.enter()
        host.answered()
        host.leave()
        await host.enter()
        assert not host.is_dead

    asyncio.run(run())


def test_an_unknown_host_gets_few_attempts_until_it_accepts_one() -> None:
    host = Host(max_failures=3, patience_s=5.0, clock=Clock())

    async def run() -> None:
        tasks = [asyncio.create_task(host.enter()) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert sum(task.done() for task in tasks) == hosts.TRIALS
        tasks[-1].cancel()
        host.leave()
        await asyncio.sleep(0.01)
        assert sum(task.done() and not task.cancelled() for task in tasks) == hosts.TRIALS + 1
        host.failed(0.0, "timeout")
        host.leave()
        await asyncio.sleep(0.01)
        assert sum(task.done() and not task.cancelled() for task in tasks) == hosts.TRIALS + 1
        host.connected()
        await asyncio.gather(*tasks[:-1])

    asyncio.run(run())


def test_rows_start_with_one_of_each_host_and_four_of_a_popular_one() -> None:
    def request(host: str) -> Request:
        return Request(URL(f"http://{host}/"), Deadline(1.0))

    popular, rare = [request("popular.test")] * 20, [request(f"{i}.test") for i in (1, 1, 2)]
    assert by_host([*popular, *rare])[:6] == [0, 1, 2, 3, 20, 22]
    assert sorted(by_host([*popular, *rare])) == list(range(23))
