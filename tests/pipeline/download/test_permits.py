"""Limits of requests to a host, in one process and by all workers of a job."""

import asyncio
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.download import permits
from pipeline.download.permit_server import PermitServer
from pipeline.download.permits import JobPermits, LocalPermits, PermitAddress, PermitsError, PermitTable
from pipeline.download.slots import Slots, Turns
from pipeline.download.stage import Download
from tests.pipeline.download.rows import config, reasons, table
from tests.pipeline.download.server import TinyWeb


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
            found.append(reasons(Download(config(deadline_s=30), permits=server.address)(table(*urls))))

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


def hold(address: PermitAddress, started: "multiprocessing.synchronize.Event") -> None:
    async def run() -> None:
        await (await JobPermits(address).ask("h"))
        started.set()
        await asyncio.sleep(60)

    asyncio.run(run())


def test_the_permits_of_a_killed_worker_return() -> None:
    context = multiprocessing.get_context("spawn")
    with PermitServer(limit=1) as server:
        started = context.Event()
        worker = context.Process(target=hold, args=(server.address, started))
        worker.start()
        assert started.wait(60)

        async def run() -> None:
            found = JobPermits(server.address)
            granted = await found.ask("h")
            assert not granted.done()
            worker.kill()
            await asyncio.wait_for(granted, 10)
            found.close()

        asyncio.run(run())
        worker.join()


def test_a_cancelled_request_returns_its_permit() -> None:
    with PermitServer(limit=1) as server:

        async def run() -> None:
            first, second = JobPermits(server.address), JobPermits(server.address)
            assert (await first.ask("h")).done()
            (await second.ask("h")).cancel()
            third = await second.ask("h")
            first.give("h")
            await asyncio.wait_for(third, 10)
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
            await asyncio.sleep(0.3)
            assert not waiting.done()
            assert first._transport is not None
            first._transport.abort()
            await asyncio.wait_for(waiting, 10)
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
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nobody = server.address._replace(port=closed.getsockname()[1])
        for address in (nobody, wrong):
            with pytest.raises(PermitsError):
                Download(config(), permits=address)(table("http://127.0.0.1:1/", "http://127.0.0.1:2/"))


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
            start = time.monotonic()
            await asyncio.gather(*[row(host) for host in "ab"])
            assert time.monotonic() - start < 1
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
