"""Memory of hosts that do not answer, so that their remaining rows cost nothing.

What happens here depends on the network and on times, as the outcome of every request does. A row is dropped only for
failures of its own host.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

TRIALS: Final = 4
"""Attempts in flight, less those that failed, at a host that has not yet accepted a connection."""

DEAD_S: Final = 60.0
"""After this time, one row tries a dead host again."""


class HostDeadError(Exception):
    """The host is dead; the message is the number of its failures, `reason` the drop reason of the last one."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Host:
    """The state of one host and port.

    It is dead after `max_failures` attempts in a row without a complete response if they took `patience_s` or longer
    together: a server that refuses connections while it restarts must not lose all its rows.
    """

    def __init__(self, max_failures: int, patience_s: float, clock: Callable[[], float]) -> None:
        self._max_failures, self._patience_s, self._clock = max_failures, patience_s, clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._n_trying = 0
        self._is_connected = False
        self._reason = ""
        self.since_s = self._failed_s = self._probe_s = 0.0
        self.is_convicted = False  # its failures are not those of this machine's network
        self.n_failures = 0
        self.has_answered = False

    @property
    def is_dead(self) -> bool:
        """True if no request but an occasional probe is worth its time."""
        return self.n_failures >= self._max_failures and self._failed_s - self.since_s >= self._patience_s

    async def enter(self) -> None:
        """Wait until the host may be asked; each call is followed by one of `leave`. Raises HostDeadError."""
        while True:
            self._raise_if_dead()
            # Attempts in flight may complete the verdict, so no others start before they have ended.
            if self._is_connected or self._n_trying < max(1, TRIALS - self.n_failures):
                break
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake(1)
                raise
        self._n_trying += 1

    def start(self) -> None:
        """Begin an attempt after all waiting. Raises HostDeadError if the host died meanwhile; one row is the probe."""
        self._raise_if_dead()
        if self.is_dead:
            self._probe_s = self._clock() + DEAD_S

    def _raise_if_dead(self) -> None:
        if self.is_dead and self._clock() < self._probe_s:
            raise HostDeadError(self._reason, f"host given up after {self.n_failures} attempts without an answer")

    def leave(self) -> None:
        """End an attempt."""
        self._n_trying -= 1
        self._wake(len(self._waiting) if self.is_dead or self._is_connected else 1)

    def connected(self) -> None:
        """Note that the host accepted a connection."""
        if not self._is_connected:
            self._is_connected = True
            self._wake(len(self._waiting))

    def forgive(self) -> None:
        """Forget the failures: they were those of this machine's network."""
        self.n_failures, self.is_convicted = 0, False
        self._wake(TRIALS)

    def reused(self) -> None:
        """Note an idle connection of an earlier shard or row, which stays open only after a complete response."""
        self.connected()
        self.has_answered = True

    def answered(self) -> None:
        """Note a complete response, of whatever status."""
        self.connected()
        self.n_failures, self.has_answered, self.is_convicted = 0, True, False

    def failed(self, start_s: float, reason: str) -> None:
        """Note an attempt, begun at `start_s`, without a complete response."""
        self.since_s = start_s if self.n_failures == 0 else min(self.since_s, start_s)
        self._failed_s = self._clock()
        self._probe_s = self._failed_s + DEAD_S
        self.n_failures += 1
        self._reason = reason

    def is_worth_remembering(self) -> bool:
        """True for a host that failed last, and not long ago."""
        return self.n_failures > 0 and self._clock() - self._failed_s < 10 * DEAD_S

    def _wake(self, n: int) -> None:
        while n and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                n -= 1


class Hosts:
    """The hosts that a process has met, by (name, port)."""

    def __init__(self, max_failures: int, patience_s: float, clock: Callable[[], float]) -> None:
        self._new = lambda: Host(max_failures, patience_s, clock)
        self._hosts: dict[tuple[str, int], Host] = {}

    def at(self, name: str, port: int) -> Host:
        if (name, port) not in self._hosts:
            self._hosts[name, port] = self._new()
        return self._hosts[name, port]

    def forget(self) -> None:
        """Forget the hosts that answer. Called between shards, so that the memory does not grow."""
        self._hosts = {key: host for key, host in self._hosts.items() if host.is_worth_remembering()}
