"""Outputs and servers that the tests of the explorer share."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipeline.explore.config import ExploreOptions
from pipeline.explore.server import QUIET, Explorer
from pipeline.explore.site import read_output
from tests.patience import PATIENCE_S
from tests.pipeline.explore.outputs import hostile, make_rows, write_output

TOKEN = "token-of-the-test"


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output of 72 rows in three shards. Tests must not change it."""
    rows = make_rows(72)
    return write_output(tmp_path_factory.mktemp("run"), [rows[:30], rows[30:60], rows[60:]], "formats=[arrow,grit]")


@pytest.fixture(scope="session")
def hostile_output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output with markup in all texts."""
    rows = hostile(make_rows(12))
    return write_output(tmp_path_factory.mktemp("hostile"), [rows], "formats=[arrow,grit]")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the indexes."""
    return str(tmp_path_factory.mktemp("cache"))


class Server:
    """The explorer's server in a thread of this process, on a free port of 127.0.0.1."""

    def __init__(self, name: str, cache: str, **options: Any) -> None:
        self.explorer = Explorer(read_output(name, cache), ExploreOptions(cache=cache, **options), TOKEN)
        self._loop, self._started = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()], daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    @property
    def url(self) -> str:
        """The address with the token."""
        return f"http://127.0.0.1:{self.port}/?token={TOKEN}"

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        runner = web.AppRunner(self.explorer.app(TOKEN, "127.0.0.1"), access_log=None, logger=QUIET, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = int(runner.addresses[0][1])
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        """End the server and its thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def start(cache: str) -> Iterator[Callable[..., Server]]:
    """A function that serves an output; all servers end with the tests."""
    servers = list[Server]()

    def serve(name: str, **options: Any) -> Server:
        servers.append(Server(name, cache, **options))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def server(output: str, start: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server of `output`."""
    return start(output, marks=str(Path(tmp_path_factory.mktemp("marks"), "marks.csv")))
