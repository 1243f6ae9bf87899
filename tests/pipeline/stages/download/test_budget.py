"""The limit on bytes in flight, and servers that send without end."""

import asyncio
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pipeline.stages.download.client import Client
from pipeline.stages.download.hosts import BudgetError, ByteBudget
from pipeline.stages.download.stage import Download
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb, jpeg


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that reads a request and calls `answer`, for each connection in a thread."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:

        def handle(connection: socket.socket) -> None:
            with connection:
                try:
                    connection.recv(65536)
                    answer(connection)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_budget_admits_new_bodies_below_its_half_and_big_ones_alone() -> None:
    async def run() -> None:
        budget = ByteBudget(100)
        first = await budget.lease(0)
        first.grow_to(60, 60)
        big = asyncio.create_task(budget.lease(90))
        small = asyncio.create_task(budget.lease(0))
        await asyncio.sleep(0)
        with pytest.raises(BudgetError):
            first.grow_to(101, 101)
        assert not big.done()
        assert not small.done()
        first.release()
        with await big as lease:
            assert budget.used == lease.n_bytes == 90
            await asyncio.sleep(0)
            assert not small.done()  # it waits in turn, so that a big body is not overtaken forever
        (await small).release()
        assert budget.used == 0

    asyncio.run(run())


def test_a_cancelled_wait_takes_no_bytes() -> None:
    async def run() -> None:
        budget = ByteBudget(100)
        lease = await budget.lease(80)
        waiting = [asyncio.create_task(budget.lease(80)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        lease.release()
        (await waiting[1]).release()
        assert budget.used == 0

    asyncio.run(run())


def test_many_big_bodies_stay_within_the_limit_and_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    image = jpeg(height=300, width=400)
    body = image + bytes(2_000_000 - len(image))  # decoders ignore what follows an image
    clients: list[Client] = []
    create = Client.__init__

    def spy(self: Client, *arguments: object) -> None:
        create(self, *arguments)  # type: ignore[arg-type]
        clients.append(self)

    monkeypatch.setattr(Client, "__init__", spy)

    def answer(connection: socket.socket) -> None:
        length = b"" if threading.get_ident() % 2 else b"Content-Length: %d\r\n" % len(body)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + length + b"Connection: close\r\n\r\n" + body)

    with raw_server(answer) as port:
        settings = config(max_bytes=2_500_000, max_bytes_in_flight=8_000_000, concurrency_per_host=32)
        found = Download(settings)(table(*[f"http://127.0.0.1:{port}/{i}" for i in range(60)]))
    assert reasons(found) == [None] * 60
    assert 2_000_000 < clients[0].budget.peak <= 8_000_000
    assert clients[0].budget.used == 0


def test_endless_early_hints_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    n_sent = [0]

    def answer(connection: socket.socket) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" * 1000
        while n_sent[0] < 3_000_000_000:
            connection.sendall(hints)
            n_sent[0] += len(hints)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raw_server(answer) as port:
        rows = Download(config())(table(*[f"http://127.0.0.1:{port}/{i}" for i in range(8)])).to_pylist()
    assert {(row["reason"], row["detail"]) for row in rows} == {
        ("connection_error", "no valid HTTP: endless interim responses")
    }
    assert n_sent[0] < 300_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_few_interim_responses_are_skipped() -> None:
    image = jpeg()

    def answer(connection: socket.socket) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 5
        connection.sendall(hints + b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(image) + image)

    with raw_server(answer) as port:
        assert reasons(Download(config())(table(f"http://127.0.0.1:{port}/"))) == [None]


@pytest.mark.parametrize(
    "block", [b"X-A: " + b"a" * 1000 + b"\r\n", b"a" * 60_000, b"X-A: a\r\n" * 1000], ids=["many", "long", "small"]
)
def test_endless_headers_end_early(block: bytes) -> None:
    n_sent = [0]

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while n_sent[0] < 1_000_000_000:
            connection.sendall(block)
            n_sent[0] += len(block)

    with raw_server(answer) as port:
        assert reasons(Download(config(retries=0))(table(f"http://127.0.0.1:{port}/"))) == ["connection_error"]
    assert n_sent[0] < 50_000_000


def test_a_body_above_the_limit_is_cut_off_although_the_server_goes_on() -> None:
    web = TinyWeb()
    found = Download(config(max_bytes=100_000))(table(*[web.url(f"/endless?{i}") for i in range(20)]))
    assert reasons(found) == ["too_many_bytes"] * 20
    assert web.bytes_sent < 100_000_000
    web.close()
