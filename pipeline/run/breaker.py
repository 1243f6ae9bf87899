"""Shards that are computed again because the network of a machine may have failed, and not the hosts of their rows."""

import logging
from collections import Counter
from typing import Any, Final

from pipeline.run.steps import Notes

logger = logging.getLogger("hypergrit")

LEAST: Final = 20
"""Rows without an answer below which a shard tells nothing: its hosts may be dead."""
PAUSE_S: Final = 30.0
"""Pause before a shard is computed again, which doubles with each time."""


class PutOffError(Exception):
    """A shard is to be computed again from its start, after `pause_s`."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(pause_s)
        self.pause_s = pause_s


class Breaker:
    """Compares the downloads of the shards of a job: at most `retries` times, a shard is put off if too few rows got an answer.

    That is if none got one, as long as there is no other shard; later, if of the rows that usually get an answer, by
    the shards before, fewer than half got one. In the end its result counts, whatever it is, also for the comparison,
    so that a job whose hosts are all dead ends.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._n_put_off = Counter[int]()
        self._n_rows = self._n_unanswered = 0.0  # of the shards whose result counts

    def check(self, plan: Any, notes: Notes) -> None:
        """Judge a shard after its step `prepare`. Raises PutOffError if it is to be computed again."""
        if "download" not in notes.timings:
            return
        n_rows, n_unanswered, index = notes.timings["download"]["rows"], notes.unanswered, plan.index
        if self._is_cut_off(n_rows, n_unanswered) and self._n_put_off[index] < self._retries:
            pause_s = PAUSE_S * 2.0 ** self._n_put_off[index]
            self._n_put_off[index] += 1
            logger.warning(
                "%d of %.0f rows of shard %d got no answer, far more than usual; it is computed again in %.0f s: check "
                "the network of this machine, and its name server", n_unanswered, n_rows, index, pause_s
            )  # fmt: skip
            raise PutOffError(pause_s)
        self._n_rows += n_rows
        self._n_unanswered += n_unanswered

    def _is_cut_off(self, n_rows: float, n_unanswered: int) -> bool:
        if n_unanswered < LEAST:
            return False
        if not self._n_rows:
            return n_unanswered == n_rows
        usual = self._n_unanswered / self._n_rows
        return n_unanswered / n_rows > (1 + usual) / 2
