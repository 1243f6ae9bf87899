"""Signs of life of the processes of a run: a lost one ends the others within a minute, by name.

A collective waits for a process that is stopped, or whose machine is gone, until `parallel.timeout_s` has passed, and on
a GPU the host waits with it. No backend names the process. So each process writes a changing value to the store of the
group every few seconds, in a thread, and reads those of the others.
"""

import logging
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from hypergrit_common.cli import USER_ERROR

logger = logging.getLogger(__name__)

BEAT_S: Final = 2.0
"""Seconds between two signs of life."""
SILENT_S: Final = 20.0
"""Seconds without one after which a process counts as lost. torchrun then waits up to 30 s for the end of all others."""
DOUBTFUL_S: Final = 10.0
"""The same after an error of a backend, which tells that one is lost."""
ENDED: Final = b"ended"
"""Value of a process that has left the run."""
FAILED: Final = b"failed"
"""Beginning of the value after an error of its own. A GPU of the others may wait for it in a collective without an end."""


class Heartbeat:
    """The signs of life of this process and of the others. Threads end this process if another one is lost."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, now = rank, time.monotonic()
        self.values, self.times = [b""] * world_size, [now] * world_size
        self.exchanged = now  # time of the last exchange with the store
        self.has_failed = False  # this process ends after an error of its own
        self.has_left = False  # it waits for no other one any more
        self.is_done = threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._exchange, self._watch)]
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Tell the others that this process ends."""
        self.is_done.set()
        self.threads[0].join(DOUBTFUL_S)

    def lost(self, limit: float) -> str:
        """Name a process that has failed or gave no sign of life for `limit` seconds; empty if there is none."""
        now = time.monotonic()
        silent = [rank for rank, at in enumerate(self.times) if now - at > limit and self.values[rank] != ENDED]
        silent = [rank for rank in silent if not (self.has_left and self.is_gone(rank))]
        silent.sort(key=self.is_gone)  # a failed one may have failed for the loss of another one
        if now - self.exchanged > limit:
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                return f"torchrun on host {os.environ['MASTER_ADDR']}, which holds the store, has ended or does not respond"
            silent = [0]  # it holds the store
        return next((self.end_of(rank) for rank in silent if rank != self.rank), "")

    def find_lost(self) -> str:
        """Wait until a lost process is known after an error of a backend, and name it; else one that has ended."""
        end = time.monotonic() + SILENT_S
        ranks = range(len(self.values))
        while not (found := self.lost(DOUBTFUL_S)) and not any(map(self.is_gone, ranks)) and time.monotonic() < end:
            time.sleep(BEAT_S)
        gone = (self.end_of(rank) for rank in ranks if self.is_gone(rank))
        return found or next(gone, "another process has ended or does not respond")

    def is_gone(self, rank: int) -> bool:
        """True for a process that has told its end."""
        return self.values[rank].split(b" ")[0] in (ENDED, FAILED)

    def end_of(self, rank: int) -> str:
        """The words for the end of a process in a message."""
        gone = self.is_gone(rank)
        return f"{self.name(rank)} has ended{'; its own message says why' if gone else ' or does not respond'}"

    def name(self, rank: int) -> str:
        """The words for a process in a message."""
        _, _, place = self.values[rank].decode().partition(" ")
        return f"process {rank} of {len(self.values)}{f' ({place})' if place else ''}"

    def _exchange(self) -> None:
        keys = [f"heartbeat/{rank}" for rank in range(len(self.values))]
        place = f"process id {os.getpid()} on host {socket.gethostname()}"
        try:
            store = dist.TCPStore(  # a connection of its own: waits of the main thread do not hold it up
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=False,
                timeout=timedelta(seconds=SILENT_S),
            )
            for number in range(10**18):
                store.set(keys[self.rank], f"{number} {place}")
                for rank, value in enumerate(store.multi_get(keys)):
                    if value != self.values[rank]:
                        self.values[rank], self.times[rank] = value, time.monotonic()
                self.exchanged = time.monotonic()
                if self.is_done.wait(BEAT_S):
                    break
            store.set(keys[self.rank], f"{FAILED.decode()} {place}" if self.has_failed else ENDED.decode())
        except (dist.DistError, RuntimeError) as error:  # `lost` names the machine of the store after a while
            logger.debug("no exchange of signs of life: %s", error)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self.is_done.wait(BEAT_S):
            if time.monotonic() - before > SILENT_S / 2:  # this process was stopped itself
                self.times, self.exchanged = [time.monotonic()] * len(self.times), time.monotonic()
            before = time.monotonic()
            if found := self.lost(SILENT_S):
                logger.error("%s: checkpoints are complete; repeat the command to resume from the last", found)
                logging.shutdown()
                os._exit(USER_ERROR)  # the main thread waits in a collective, which no exception reaches
