"""Connections in flight: a limit for this worker, and permits for each host."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipeline.download.permits import Permits


class Slots:
    """The connections of one worker.

    A row first takes one of the worker's slots, then a permit of its host. If it must wait for the permit, it returns
    the slot meanwhile, and is the next to get one when the permit comes. So a busy host occupies no slots of the
    others, and a permit, which other workers may wait for, never lies idle behind a full queue.
    """

    def __init__(self, limit: int, permits: Permits) -> None:
        self._turns, self._permits = Turns(limit), permits

    @asynccontextmanager
    async def at(self, host: str) -> AsyncIterator[None]:
        """Wait for a slot and a permit of `host`, and hold both until the context ends."""
        await self._turns.take()
        holds_turn = True
        try:
            granted = await self._permits.ask(host)
            if not granted.done():
                self._turns.give()
                holds_turn = False
            try:
                await granted
                if not holds_turn:
                    await self._turns.take(is_urgent=True)
                    holds_turn = True
                yield
            finally:
                if granted.done() and not granted.cancelled() and granted.exception() is None:
                    self._permits.give(host)
        finally:
            if holds_turn:
                self._turns.give()


class Turns:
    """A semaphore with two queues, of which the urgent one comes first."""

    def __init__(self, n: int) -> None:
        self._free = n
        self._queues: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque())

    async def take(self, is_urgent: bool = False) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[0 if is_urgent else 1].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise

    def give(self) -> None:
        for queue in self._queues:
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1
