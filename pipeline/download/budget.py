"""Limit on the bytes of bodies in memory."""

import asyncio
from collections import deque


class BudgetError(Exception):
    """A body does not fit now; reserve `n_bytes` and fetch it again."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(n_bytes)
        self.n_bytes = n_bytes


class ByteBudget:
    """A number of bytes shared by all bodies of a process, from the first block until the image is encoded.

    A body takes bytes as it arrives. While more than half are taken, no request starts, so that the budget is rarely
    exceeded. A body for which nothing is left raises BudgetError instead of waiting: bodies that wait for each
    other would never end, and a wait would count in the time limit of the attempt. Its row reserves what the body may
    need, outside any connection, and fetches it again.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.peak = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def lease(self, n_bytes: int) -> "Lease":
        """Reserve `n_bytes` once they are free and less than half of all bytes are taken."""
        if self._waiting or not self._fits(n_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((n_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give(n_bytes)
                raise
        else:
            self._take(n_bytes)
        return Lease(self, n_bytes)

    def try_take(self, n_bytes: int) -> bool:
        """Take bytes if they are free."""
        if self.used + n_bytes > self.limit:
            return False
        self._take(n_bytes)
        return True

    def give(self, n_bytes: int) -> None:
        """Return bytes, and start those who wait for them."""
        self.used -= n_bytes
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._take(wanted)
                turn.set_result(None)

    def _fits(self, n_bytes: int) -> bool:
        return self.used == 0 or (self.used <= self.limit // 2 and self.used + n_bytes <= self.limit)

    def _take(self, n_bytes: int) -> None:
        self.used += n_bytes
        self.peak = max(self.peak, self.used)


class Lease:
    """The bytes of one body, until `release`; a context manager."""

    def __init__(self, budget: ByteBudget, reserved: int) -> None:
        self.budget, self.n_bytes = budget, reserved

    def grow_to(self, n_bytes: int, need: int) -> None:
        """Hold at least `n_bytes`.

        Raises BudgetError with `need`, the most that the whole body may take, if they are not free.
        """
        if n_bytes > self.n_bytes:
            if not self.budget.try_take(n_bytes - self.n_bytes):
                raise BudgetError(need)
            self.n_bytes = n_bytes

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Return the bytes."""
        self.budget.give(self.n_bytes)
        self.n_bytes = 0
