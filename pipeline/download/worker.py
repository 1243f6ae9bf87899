"""The event loop of a download stage: it lives as long as the stage, and connections and host names with it."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from pipeline.download.client import Client
from pipeline.download.config import DownloadConfig
from pipeline.download.permits import PermitAddress

Result = TypeVar("Result")


class Worker:
    """A Client on an event loop of its own, opened when it is first needed.

    The loop runs only within `run`. A process that inherits the object by fork, or receives it by pickle, opens its own.
    """

    def __init__(self, config: DownloadConfig, permits: PermitAddress | None) -> None:
        self._config, self._permits = config, permits
        self._open: _Open | None = None
        self._lock = threading.Lock()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result:
        """Run `work(client)` to its end. After an exception, the next call starts with a new client."""
        with self._lock:
            if self._open is None or self._open.pid != os.getpid():
                self._open = _Open(self._config, self._permits)
            try:
                return self._open.runner.run(work(self._open.client))
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def __getstate__(self) -> tuple[DownloadConfig, PermitAddress | None]:
        return self._config, self._permits

    def __setstate__(self, state: tuple[DownloadConfig, PermitAddress | None]) -> None:
        self.__init__(*state)  # type: ignore[misc]


class _Open:
    """A loop and its client; closed by `close`, when the object is collected, or at the end of the process."""

    def __init__(self, config: DownloadConfig, permits: PermitAddress | None) -> None:
        self.pid = os.getpid()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.runner.get_loop()  # raises for a lack of open files
        self.client = self.runner.run(_new_client(config, permits))
        self.close = weakref.finalize(self, _close, self.runner, self.client, self.pid)


async def _new_client(config: DownloadConfig, permits: PermitAddress | None) -> Client:
    return Client(config, permits)


def _close(runner: asyncio.Runner, client: Client, pid: int) -> None:
    if os.getpid() != pid:  # after a fork, loop and connections belong to the parent
        return

    def run() -> None:
        runner.run(client.close())
        runner.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        run()
    else:  # collected as garbage while another loop runs in this thread
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
