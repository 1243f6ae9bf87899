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
WEIGHT: Final = 0.9
"""Weight of a shard beside the next one, its square beside the one after that, and so on."""


class PutOffError(Exception):
    """A shard is to be computed again from its start, after `pause_s`."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(pause_s)
        self.pause_s = pause_s


class Breaker:
    """Compares the downloads of the shards of a job. A shard is put off if too few of its rows got an answer.

    That is if none got one, as long as no other shard counts; later, if of the rows that usually get an answer, fewer
    than half got one. After `retries` times the result of a shard counts, whatever it is: a job whose hosts are all dead
    ends. The last shards decide what is usual, so that the rows of an input may become worse from some shard on.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._n_put_off = Counter[int]()
        self._n_asked = self._n_unanswered = 0.0  # of the shards that count

    def check(self, plan: Any, notes: Notes) -> None:
        """Judge a shard after its step `prepare`. Raises PutOffError if it is to be computed again."""
        n_before = self._n_put_off[plan.index]
        if self._is_cut_off(notes) and n_before < self._retries:
            self._n_put_off[plan.index] += 1
            pause_s = PAUSE_S * 2.0**n_before
            logger.warning(
                "%d of %d rows of shard %d got no answer, far more than usual; it is computed again in %.0f s: check "
                "the network of this machine, and its name server", notes.unanswered, notes.asked, plan.index, pause_s
            )  # fmt: skip
            raise PutOffError(pause_s)
        self._n_asked = WEIGHT * self._n_asked + notes.asked
        self._n_unanswered = WEIGHT * self._n_unanswered + notes.unanswered

    def _is_cut_off(self, notes: Notes) -> bool:
        if notes.unanswered < LEAST:
            return False
        if not self._n_asked:
            return notes.unanswered == notes.asked
        usual = self._n_unanswered / self._n_asked
        return notes.unanswered / notes.asked > (1 + usual) / 2
