"""Pauses of the process cost no row and are not held against hosts."""

import asyncio
import socket
import time
from typing import Any

import pytest

from pipeline.stages.download.client import Client
from pipeline.stages.download.hosts import BEAT_S, Pulse, Shortage
from pipeline.stages.download.resolver import Resolver
from pipeline.stages.download.stage import Download, Outcome
from tests.pipeline.stages.download.names import Names
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import jpeg
from tests.pipeline.stages.download.test_verdicts import send, serve


class Stopped(Download):
    """Stands still for 3 s soon after its requests have begun, like a process with SIGSTOP."""

    async def _prepare_all(self, rows: Any, client: Client) -> list[Outcome]:
        asyncio.get_running_loop().call_later(0.15, time.sleep, 3.0)
        return await super()._prepare_all(rows, client)


def test_a_stopped_process_drops_no_row() -> None:
    """All time-outs pass while it is stopped, even the time of the rows in all."""

    def answer(connection: socket.socket, *_: object) -> None:
        time.sleep(0.3)
        send(connection, body=jpeg())

    with serve(answer) as port:
        download = Stopped(config(timeout_s=1.5, connect_timeout_s=1.5, deadline_s=2.5, host_failures=1))
        assert reasons(download(table(*(f"http://127.0.0.1:{port}/{i}" for i in range(24))))) == [None] * 24
        download.close()


def test_pauses_are_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    pulse = Pulse(lambda: now)
    for _ in range(3):
        now += 60
        pulse.time()
    assert (pulse.n_pauses, caplog.text.count("stood still")) == (3, 1)


def test_the_clock_stands_still_during_a_pause() -> None:
    now = 0.0
    pulse = Pulse(lambda: now)
    now = 0.2
    assert pulse.time() == 0.2
    now = 18.2
    assert pulse.has_paused(0)
    assert pulse.time() == pytest.approx(0.2 + BEAT_S)

    async def run() -> None:
        nonlocal now
        now = 1000.0  # between two tables
        with pulse.beating():
            assert not pulse.has_paused(1)

    asyncio.run(run())


def test_a_name_is_asked_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(delay_s=1.0)
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)

    async def run() -> None:
        pulse = Pulse()
        resolver = Resolver(frozenset(), 8, 3.0, 8, Shortage(pulse.time), pulse)
        with pulse.beating():
            asking = asyncio.create_task(resolver.lookup("ok0.test"))
            await asyncio.sleep(0.1)
            time.sleep(4.0)  # timers fire first when the loop goes on
            assert await asking == ("127.0.0.1",)

    asyncio.run(run())
