"""Limits of requests to a host, in one process and by all workers of a job."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hypergrit_common.processes import free_ports
from pipeline.stages.download import permits
from pipeline.stages.download.permits import (
    JobPermits,
    LocalPermits,
    PermitsError,
    PermitServer,
    PermitTable,
    Slots,
    Turns,
)
from pipeline.stages.download.stage import Download
from tests.patience import PATIENCE_S
from tests.pipeline.stages.download.names import Names
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb


@pytest.fixture
def web() -> Iterator[TinyWeb]:
    server = TinyWeb()
    yield server
    server.close()


def test_permits_pass_to_the_first_in_the_queue() -> None:
    found, granted = PermitTable(2), []
    assert [found.ask(b"h", lambda i=i: not granted.append(i)) for i in range(4)] == [True, True, False, False]  # type: ignore[misc]
    assert found.ask(b"other", lambda: True)
    found.give(b"h")
    found.give(b"h")
    assert granted == [2, 3]
    found.give(b"h")
    found.give(b"h")
    found.give(b"other")
    assert not found._in_use
    assert not found._queues


def test_all_workers_of_a_job_keep_to_the_limit_of_a_host(web: TinyWeb) -> None:
    urls = [web.url(f"/busy/{i}") for i in range(15)]
    found: list[list[str | None]] = []
    with PermitServer(limit=2) as server:

        def work() -> None:
            found.append(reasons(Download(config(), permits=server.address)(table(*urls))))

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert found == [[None] * 15] * 4
    assert web.max_busy == 2


def test_workers_without_a_server_each_keep_to_the_limit(web: TinyWeb) -> None:
    assert reasons(Download(config(concurrency_per_host=3))(table(*[web.url(f"/busy/{i}") for i in range(12)])))
    assert web.max_busy == 3


def test_the_permits_of_a_killed_worker_return() -> None:
    """Its system closes the connection."""
    with PermitServer(limit=1) as server, socket.create_connection(server.address[:2], timeout=PATIENCE_S) as worker:
        worker.sendall(server.address.secret.encode() + permits.ASK + permits._key("h"))
        assert worker.recv(permits.RECORD_BYTES)[:1] == permits.GRANTED

        async def run() -> None:
            found = JobPermits(server.address)
            granted = await found.ask("h")
            assert not granted.done()
            worker.close()
            await asyncio.wait_for(granted, PATIENCE_S)
            found.close()

        asyncio.run(run())


def test_a_cancelled_request_returns_its_permit() -> None:
    with PermitServer(limit=1) as server:

        async def run() -> None:
            first, second = JobPermits(server.address), JobPermits(server.address)
            assert (await first.ask("h")).done()
            (await second.ask("h")).cancel()
            third = await second.ask("h")
            first.give("h")
            await asyncio.wait_for(third, PATIENCE_S)
            first.close()
            second.close()

        asyncio.run(run())


def test_a_lost_connection_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits, "PAUSE_S", 0.05)
    with PermitServer(limit=1) as server:

        async def run() -> None:
            first, second = JobPermits(server.address), JobPermits(server.address)
            assert (await first.ask("h")).done()
            waiting = await second.ask("h")
            assert second._transport is not None
            second._transport.abort()
            await asyncio.sleep(0.01)
            while second._transport is None:
                await asyncio.sleep(0.01)
            assert not waiting.done()
            assert first._transport is not None
            first._transport.abort()
            await asyncio.wait_for(waiting, PATIENCE_S)
            assert not (await first.ask("h")).done()
            second.give("h")
            first.close()
            second.close()

        asyncio.run(run())


def test_a_server_that_cannot_be_reached_ends_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits, "PAUSE_S", 0.05)
    monkeypatch.setattr(permits, "RECONNECT_S", 0.3)
    with PermitServer(limit=1) as server:
        wrong = server.address._replace(secret="x" * 32)
        nobody = server.address._replace(port=free_ports(1)[0])
        for address in (nobody, wrong):
            with pytest.raises(PermitsError):
                Download(config(), permits=address)(table("http://127.0.0.1:3/", "http://127.0.0.1:2/"))


def test_replies_come_in_the_order_of_the_requests() -> None:
    """A permit given back in the same packet as a request for it is granted after the reply to the request."""
    key = permits._key("h")
    with PermitServer(limit=1) as server, socket.create_connection(server.address[:2], timeout=PATIENCE_S) as worker:
        worker.sendall(server.address.secret.encode() + (permits.ASK + key) * 2 + permits.GIVE + key)
        replies = b""
        while len(replies) < 3 * permits.RECORD_BYTES:
            replies += worker.recv(3 * permits.RECORD_BYTES)
    assert replies == b"".join(kind + key for kind in (permits.GRANTED, permits.QUEUED, permits.GRANTED_LATER))


def test_a_connection_that_is_lost_before_its_first_use_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits, "PAUSE_S", 0.05)
    with PermitServer(limit=1) as server:

        async def run() -> None:
            loop, n_connections = asyncio.get_running_loop(), 0
            connect = loop.create_connection

            async def connect_and_lose(*args: Any) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
                nonlocal n_connections
                n_connections += 1
                transport, protocol = await connect(*args)
                if n_connections == 1:
                    transport.abort()
                    await asyncio.sleep(0)
                return transport, protocol

            monkeypatch.setattr(loop, "create_connection", connect_and_lose)
            found = JobPermits(server.address)
            assert (await asyncio.wait_for(found.ask("h"), PATIENCE_S)).done()
            assert n_connections == 2
            found.close()

        asyncio.run(run())


def test_the_system_watches_both_ends_of_a_connection() -> None:
    """A machine that vanishes closes no connection, so that TCP has to find out, and the permits return."""
    with PermitServer(limit=1) as server:

        async def run() -> None:
            found = JobPermits(server.address)
            (await found.ask("h")).result()
            (worker,) = server._workers
            for transport in (found._transport, worker._transport):
                assert transport is not None
                connection = transport.get_extra_info("socket")
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < permits.LOST_S
            found.close()

        asyncio.run(run())


def test_a_server_lost_between_two_tables_is_searched_for_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits, "PAUSE_S", 0.05)
    with PermitServer(limit=1) as server:

        async def run() -> None:
            loop, n_failures = asyncio.get_running_loop(), iter(range(2))
            found, connect = JobPermits(server.address), loop.create_connection

            async def connect_later(*args: Any) -> Any:
                if next(n_failures, None) is not None:
                    raise ConnectionRefusedError
                return await connect(*args)

            (await found.ask("h")).result()
            found.give("h")
            assert found._transport is not None
            found._transport.abort()
            await asyncio.sleep(0.01)
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + 2 * permits.RECONNECT_S)
            monkeypatch.setattr(loop, "create_connection", connect_later)
            assert (await asyncio.wait_for(found.ask("h"), PATIENCE_S)).done()
            found.close()

        asyncio.run(run())


def test_a_name_with_and_without_its_final_dot_is_one_host(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names().getaddrinfo)
    urls = [f"http://{name}:{web.port}/busy/{i}" for i, name in enumerate(("ok0.test", "ok0.test.") * 4)]
    assert reasons(Download(config(concurrency_per_host=2))(table(*urls))) == [None] * 8
    assert web.max_busy == 2


def test_a_busy_host_occupies_no_slots_and_comes_first_when_it_is_free() -> None:
    async def run() -> None:
        order: list[str] = []
        slots = Slots(1, LocalPermits(1))

        async def row(host: str, name: str, seconds: float = 0.0) -> None:
            async with slots.at(host):
                order.append(name)
                await asyncio.sleep(seconds)

        async with asyncio.TaskGroup() as group:
            for host, name in [("a", "a1"), ("b", "b1"), ("b", "b2")]:
                group.create_task(row(host, name, 0.01))
        assert order == ["a1", "b1", "b2"]
        assert slots._turns._free == 1

    asyncio.run(run())


def test_cancelled_rows_leave_no_slot_occupied() -> None:
    async def run() -> None:
        slots = Slots(2, LocalPermits(1))

        async def row(host: str) -> None:
            async with slots.at(host):
                await asyncio.sleep(0.02)

        for delay_s in (0.0, 0.005, 0.03):
            tasks = [asyncio.create_task(row(host)) for host in "aaabbbccc"]
            await asyncio.sleep(delay_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.wait_for(asyncio.gather(*[row(host) for host in "ab"]), PATIENCE_S)
        assert slots._turns._free == 2

    asyncio.run(run())


def test_urgent_waiters_are_served_first() -> None:
    async def run() -> None:
        turns, order = Turns(1), []
        await turns.take()

        async def take(name: str, is_urgent: bool) -> None:
            await turns.take(is_urgent)
            order.append(name)
            turns.give()

        tasks = [asyncio.create_task(take("late", False)), asyncio.create_task(take("urgent", True))]
        await asyncio.sleep(0)
        turns.give()
        await asyncio.gather(*tasks)
        assert order == ["urgent", "late"]

    asyncio.run(run())
